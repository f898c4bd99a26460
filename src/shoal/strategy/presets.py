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
    # One fragment at a time, each every 30 steps, while training goes on: a sixth of the bytes at once, hidden.
    "streaming-diloco": {
        "schedule": {"steps": 5, "fragments": 6, "order": "rotate", "overlap": 2},
        "codec": {"kind": "int4"},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "nesterov", "lr": 0.4, "momentum": 0.9},
        "merge": {"kind": "mix", "alpha": 0.5},
    },
    # A quorum seals, a while of grace takes in the next few, and who is later still counts in the next round.
    "decoupled": {
        "schedule": {"steps": 30, "overlap": 10},
        "codec": {"kind": "int8"},
        "seal": {"kind": "quorum", "quorum": 0.5, "grace_s": 5.0, "deadline_s": 120.0, "staleness": 1},
        "aggregate": _MEAN,
        "outer": {"kind": "nesterov", "lr": 0.4, "momentum": 0.9},
        "merge": {"kind": "add-delta"},
        "weights": {"kind": "tokens-squared-per-step", "discount": 0.5},
    },
    # Nobody waits for anybody: every arrival moves the state by its share of the fleet.
    "async": {
        "schedule": {"steps": 30, "overlap": 10},
        "codec": {"kind": "int8"},
        "seal": {"kind": "arrivals", "min_interval_s": 2.0, "adaptive": True, "attest_every": 8},
        "aggregate": _MEAN,
        "outer": {"kind": "delayed-nesterov", "lr": 0.7, "momentum": 0.9, "period": 8},
        "merge": {"kind": "add-delta"},
        "weights": {"kind": "samples", "discount": 0.5},
    },
    # Local models go their own ways, on a spring to a common centre. The centre moves by `lr` times the mean of the
    # pulls; `lr` as large as the number of nodes is the symmetric spring.
    "easgd": {
        "schedule": {"steps": 10},
        "codec": {"kind": "int8", "error_feedback": True},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "sgd", "lr": 1.0},
        "merge": {"kind": "elastic", "alpha": 0.5},
    },
    # A few values of every chunk at two bits, the rest later: for the thinnest links, given rounds enough.
    "sparseloco": {
        "schedule": {"steps": 15},
        "codec": {"kind": "chunked-top-k", "error_feedback": True, "feedback_decay": 0.95},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "sgd", "lr": 1.0},
        "merge": _REPLACE,
    },
    # For `inner: {kind: muon}`, whose updates are so even that two bits each lose next to nothing.
    "muloco": {
        "schedule": {"steps": 30},
        "codec": {"kind": "two-bit", "error_feedback": True},
        "seal": _ALL,
        "aggregate": _MEAN,
        "outer": {"kind": "sgd", "lr": 1.0},
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
