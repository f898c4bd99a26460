"""Named algorithms as a table over the pieces; a recipe may override any of them."""

from __future__ import annotations

from typing import Any

_MEAN = {"kind": "mean"}
_ALL = {"kind": "all-or-deadline"}
_REPLACE = {"kind": "replace"}

PRESETS: dict[str, dict[str, Any]] = {
    # Every step in sync: the baseline that everything else is measured against.
    "ddp": {
        "schedule": {"steps": 1},
        "codec": {"kind": "none"},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "sgd", "lr": 1.0},
        "merge": _REPLACE,
    },
    # Average the models every H steps.
    "local-sgd": {
        "schedule": {"steps": 30},
        "codec": {"kind": "int8"},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "sgd", "lr": 1.0},
        "merge": _REPLACE,
    },
    # Nesterov momentum on the averaged progress; pays off when hundreds of rounds are planned.
    "diloco": {
        "schedule": {"steps": 30},
        "codec": {"kind": "int8"},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9},
        "merge": _REPLACE,
    },
}


def expand(section: dict[str, Any]) -> dict[str, Any]:
    """The strategy section with its preset's values filled in. Raises KeyError for an unknown preset."""
    name = section.get("preset", "diloco")
    if not isinstance(name, str) or name not in PRESETS:
        raise KeyError(name)
    merged: dict[str, Any] = {"preset": name}
    for key, value in PRESETS[name].items():
        merged[key] = dict(value)
    for key, value in section.items():
        base = merged.get(key)
        if not isinstance(base, dict) or not isinstance(value, dict):
            merged[key] = value
        elif "kind" in value and value["kind"] != base.get("kind"):
            merged[key] = value  # Another piece: the preset's parameters were for its own.
        else:
            merged[key] = {**base, **value}
    return merged
