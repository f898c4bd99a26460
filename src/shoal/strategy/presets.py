"""Named algorithms as a table over the pieces; a recipe may override any of them.

A row's `inner` section, where it has one, belongs under the recipe's own: it holds where the recipe says nothing, and
for the kind of optimiser that it names; so does its `warm_up`: one step in so many is the rise of a schedule that says
where it ends. Its `large` section takes the place of pieces where a node's batch has so many samples and more; its
`few` section does in runs of fewer rounds than that.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "seal": {"kind": "all-or-deadline"},
    "aggregate": {"kind": "mean"},
    "outer": {"kind": "sgd", "lr": 1.0},
    "merge": {"kind": "replace"},
}
"""Everybody waits for everybody, and the mean of their models is where all go on from: what a row does not name."""
_GRADIENT = {"kind": "sgd", "lr": 1.0}
"""An inner step that is the gradient itself."""
DEFAULT = "auto"
NOT_PIECES = ("inner", "warm_up", "large", "batch", "few", "rounds")
_TWO_BITS = {"kind": "two-bit", "error_feedback": True}
_MOMENTUM = {"kind": "nesterov", "lr": 1.2, "momentum": 0.6}

_ROWS: dict[str, dict[str, Any]] = {
    # The default: Muon inside with little momentum of its own, since one node's is noisy; the momentum is outside,
    # where it is everybody's. An eighth of the values as signs, often, beats two bits of each, rarely; but what is left
    # out comes later, so that a run of few rounds sends two bits of each, often. Large batches are less noisy: they are
    # taken in two steps, and what costs then is that nodes drift apart, so that they meet every 3 steps with fewer
    # values; what comes late is a momentum of its own, so less is wanted outside; the steps are long, hence the long
    # warm-up. docs/communication.md.
    "auto": {
        "schedule": {"steps": 10, "hide": 0.25},
        "codec": {"kind": "ternary", "density": 0.134, "error_feedback": True},
        "aggregate": {"kind": "clipped-mean"},
        "outer": _MOMENTUM,
        "inner": {"kind": "muon", "momentum": 0.85},
        "planner": {"kind": "aware"},
        "few": {"rounds": 100, "codec": _TWO_BITS},
        "large": {
            "batch": 16,
            "schedule": {"steps": 3, "hide": 0.25},
            "codec": {"kind": "ternary", "density": 0.0274, "error_feedback": True},
            "outer": {"kind": "nesterov", "lr": 1.6, "momentum": 0.4},
            "inner": {"kind": "muon", "momentum": 0.85, "split": 2},
            "warm_up": 6,
            "few": {"rounds": 120, "codec": _TWO_BITS, "outer": _MOMENTUM},
        },
    },
    # Every step in sync: the baseline that everything else is measured against.
    "ddp": {
        "schedule": {"steps": 1},
        "codec": {"kind": "none"},
    },
    # Average the models every H steps.
    "local-sgd": {
        "schedule": {"steps": 30},
        "codec": {"kind": "int8"},
    },
    # Nesterov momentum on the averaged progress; pays off when hundreds of rounds are planned.
    "diloco": {
        "schedule": {"steps": 30},
        "codec": {"kind": "int8"},
        "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9},
    },
    # One fragment at a time, each every 30 steps, while training goes on: a third of the bytes at once, hidden.
    "streaming-diloco": {
        "schedule": {"steps": 10, "fragments": 3, "order": "rotate", "overlap": 2},
        "codec": {"kind": "int4", "error_feedback": True},
        "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9},
        "merge": {"kind": "add-delta"},
    },
    # A quorum seals, a while of grace takes in the next few, and who is later still counts in the next round.
    "decoupled": {
        "schedule": {"steps": 30, "overlap": 10},
        "codec": {"kind": "int8"},
        "seal": {"kind": "quorum", "quorum": 0.5, "grace_s": 5.0, "deadline_s": 120.0, "staleness": 1},
        "outer": {"kind": "nesterov", "lr": 0.4, "momentum": 0.9},
        "merge": {"kind": "add-delta"},
        "weights": {"kind": "tokens-squared-per-step", "discount": 0.5},
    },
    # Devices and lines of all kinds: each takes the steps that its speed and its line leave room for, trains on while
    # updates travel, and a round that has enough is sealed. See docs/network.md.
    "adaptive": {
        "schedule": {"steps": 30, "overlap": 30},
        "codec": {"kind": "int8"},
        "seal": {"kind": "quorum", "quorum": 0.75, "grace_s": 2.0, "deadline_s": 120.0, "staleness": 1},
        "merge": {"kind": "add-delta"},
        "planner": {"kind": "aware"},
    },
    # Nobody waits for anybody: every arrival moves the state by its share of the fleet.
    "async": {
        "schedule": {"steps": 30, "overlap": 10},
        "codec": {"kind": "int8"},
        "seal": {"kind": "arrivals", "min_interval_s": 2.0, "adaptive": True, "attest_every": 8},
        "outer": {"kind": "delayed-nesterov", "lr": 0.7, "momentum": 0.9, "period": 8},
        "merge": {"kind": "add-delta"},
        "weights": {"kind": "samples", "discount": 0.5},
    },
    # Local models go their own ways, on a spring to a common centre. The centre moves by `lr` times the mean of the
    # pulls; `lr` as large as the number of nodes is the symmetric spring.
    "easgd": {
        "schedule": {"steps": 10},
        "codec": {"kind": "int8", "error_feedback": True},
        "merge": {"kind": "elastic", "alpha": 0.5},
    },
    # Between two rounds of everybody nodes meet in pairs, drawn anew each time: a node then takes in one update a
    # round, however many nodes there are, and all of them in one round of `global_every`.
    "gossip": {
        "schedule": {"steps": 15},
        "codec": {"kind": "int8"},
        "merge": {"kind": "pairs", "global_every": 4},
    },
    # Regions of near machines train in rounds of their own; their hubs claim what the region has trained, whenever it
    # has, and bring back what the others did.
    "halos": {
        "schedule": {"steps": 60, "overlap": 60},
        "codec": {"kind": "int8"},
        "seal": {"kind": "arrivals", "min_interval_s": 1.0, "adaptive": True, "attest_every": 1},
        "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.5},
        "merge": {"kind": "add-delta"},
        "region": {
            "preset": "diloco",
            "schedule": {"steps": 15},
            "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.5},
        },
    },
    # A few values of every chunk at two bits, the rest later: for the thinnest links, given rounds enough.
    "sparseloco": {
        "schedule": {"steps": 15},
        "codec": {"kind": "chunked-top-k", "error_feedback": True, "feedback_decay": 0.95},
    },
    # Synchronous Adam, exactly: nodes send gradients, and everybody takes Adam's step. Like the two below it, it wants
    # `outer.lr` set as one would set Adam's.
    "ddp-adam": {
        "schedule": {"steps": 1},
        "codec": {"kind": "none"},
        "outer": {"kind": "adam", "lr": 1e-3, "warmup_rounds": 50, "decay": "cosine"},
        "inner": _GRADIENT,
    },
    # Adam whose variance is learnt in a warm-up sent whole, and then kept; from there on signs of the momentum are
    # enough, with error feedback both ways. (On the way back it is two bits: one loses another percent.) Set both
    # warm-up and `freeze_after` to a quarter of the rounds.
    "onebit-adam": {
        "schedule": {"steps": 1},
        "codec": {"kind": "one-bit", "chunk": 256, "error_feedback": True, "warmup_rounds": 200},
        "outer": {
            "kind": "onebit-adam",
            "lr": 1e-3,
            "freeze_after": 200,
            "warmup_rounds": 50,
            "decay": "cosine",
        },
        "digest": {"kind": "two-bit", "chunk": 256},
        "inner": _GRADIENT,
    },
    # DeMo: each node keeps a momentum of its own, sends its largest cosines and forgets what it sent; everybody
    # steps by the signs of their mean. The momentum is the codec's residual, and `feedback_decay` how fast it fades.
    "demo": {
        "schedule": {"steps": 1},
        "codec": {"kind": "dct", "error_feedback": True, "feedback_decay": 0.999},
        "outer": {"kind": "sign", "lr": 1e-3, "warmup_rounds": 50, "decay": "cosine"},
        "inner": _GRADIENT,
    },
    # For `inner: {kind: muon}`, whose updates are so even that two bits each lose next to nothing.
    "muloco": {
        "schedule": {"steps": 30},
        "codec": {"kind": "two-bit", "error_feedback": True},
    },
}

PRESETS: dict[str, dict[str, Any]] = {name: {**_COMMON, **row} for name, row in _ROWS.items()}


def expand(section: dict[str, Any], rounds: object = None, batch: object = None) -> dict[str, Any]:
    """The strategy section with its preset's values filled in, for a run of so many rounds and batches of so many
    samples, where that is known. Raises KeyError for an unknown preset."""
    name = section.get("preset", DEFAULT)
    if not isinstance(name, str) or name not in PRESETS:
        raise KeyError(name)
    row = row_for(name, batch)
    few = row.get("few", {"rounds": 0})
    if isinstance(rounds, int) and rounds < few["rounds"]:
        row = {**row, **few}
    pieces = {key: dict(value) for key, value in row.items() if key not in NOT_PIECES}
    merged = {"preset": name, **_over(pieces, section)}
    if isinstance(merged.get("region"), dict):
        given, usual = section.get("region", {}), row.get("region", {})
        same = given.get("preset", usual.get("preset")) == usual.get("preset")
        merged["region"] = expand(_over(usual, given) if same else given, batch=batch)
    return merged


def row_for(preset: str, batch: object) -> dict[str, Any]:
    """What the preset is for batches of so many samples, where that is known."""
    row = PRESETS[preset]
    large = row.get("large", {})
    return {**row, **large} if large and isinstance(batch, int) and batch >= large["batch"] else row


def _over(pieces: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """These pieces with those of a section over them."""
    merged = dict(pieces)
    for key, value in section.items():
        base = merged.get(key)
        if not isinstance(base, dict) or not isinstance(value, dict):
            merged[key] = value
        elif "kind" in value and value["kind"] != base.get("kind"):
            merged[key] = value  # Another piece: the preset's parameters were for its own.
        else:
            merged[key] = {**base, **value}
    return merged


def inner_defaults(preset: str, inner: object) -> dict[str, Any]:
    """The recipe's inner section over what the preset is made for, unless the two name different optimisers."""
    given = inner if isinstance(inner, dict) else {}
    row = row_for(preset, given.get("batch_size"))
    defaults: dict[str, Any] = dict(row.get("inner", {}))
    if "warm_up" in row and isinstance(total := given.get("total_steps"), int):
        defaults["warmup_steps"] = max(1, total // row["warm_up"])
    if inner is None and defaults:
        return {"inner": defaults}
    if not isinstance(inner, dict) or inner.get("kind", defaults.get("kind")) != defaults.get("kind"):
        return {}
    return {"inner": {**defaults, **inner}}
