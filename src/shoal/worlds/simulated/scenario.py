"""One seed's scenario: fleet, recipe and mix of faults, all drawn from the seed.

In flows a seed; out flow plain values. Invariant: the seed alone decides, so a failing seed is a reproduction.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from shoal.strategy.recipe import Recipe, recipe_from
from shoal.worlds.simulated.liars import LIARS
from shoal.worlds.simulated.network import Link

TORCH_EVERY = 50
"""One seed in so many trains a small torch model instead of the toy."""
BIG_EVERY = 40
"""One seed in so many has a toy whose updates and states are blobs of several chunks."""
BIG_SIZE = 300_000
LIAR_CHANCE = 0.15
END_CHANCE = 0.25
KINDS = ("crash", "hang", "cut", "clog", "coordinator", "leave", "late", "wipe", "pause", "rewind")
FAILOVER_KINDS = ("coordinator", "database", "stall")
"""What happens to leaders where others stand by: they die, lose the database, or hang."""
MEMBERS_EVERY = 3
"""Of the seeds with stand-bys, one in so many has coordinators with a store each, and a log that a majority keeps."""
ENDS = ("rounds", "tokens", "seconds", "stop")
BASES = (
    "ddp",
    "local-sgd",
    "diloco",
    "streaming-diloco",
    "decoupled",
    "async",
    "easgd",
    "sparseloco",
    "muloco",
)
"""Presets that the drawn pieces are put over."""
OUTSIDE = ("ddp-adam", "onebit-adam", "demo")
"""Presets whose outer optimiser takes the real step, so that not everything goes with them."""
OUTSIDE_EVERY = 12
"""One seed in so many has one of them."""
IN_PAIRS, PAIRS_EVERY = "gossip", 12
"""One seed in so many has nodes that meet in pairs."""
AWARE_EVERY = 8
"""One seed in so many is planned by what was measured."""
DIGESTS_EVERY = 6
"""One seed in so many is folded through digests."""
OUTSIDE_STEP_S = 1.0
"""A step of theirs is a round: with shorter ones a fast machine is always a few rounds ahead of a distant one, which
fetches one after another and never catches up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host to be."""

    name: str
    link: Link
    speed: float
    inbound: bool
    skew_s: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    seed: int
    torch: bool
    recipe: Recipe
    coordinator: Machine
    nodes: tuple[Machine, ...]
    size: int
    step_s: float
    chaos_s: float
    loss: float
    duplicate: float
    reorder: float
    corrupt: float
    trouble_every_s: float
    """Mean time between troubles, each one of `troubles`."""
    point_chance: float
    """Chance to die at a named point, while there is chaos."""
    troubles: tuple[str, ...]
    ends: str
    """What ends the run, one of `ENDS`; "" for a run that goes on."""
    stop_at_s: float
    """When the operator stops it, if that is its end."""
    liars: tuple[tuple[str, str], ...]
    """(node, kind of lie), fewer than a third of the nodes."""
    standbys: tuple[Machine, ...] = ()
    """Other coordinators, on one database with the first, or each with a store of its own."""

    @property
    def coordinators(self) -> tuple[Machine, ...]:
        return (self.coordinator, *self.standbys)

    @property
    def by_majority(self) -> bool:
        """Whether each coordinator has a store of its own."""
        return bool(self.recipe.membership.coordinators)


def draw_scenario(seed: int) -> Scenario:
    rng = random.Random(f"scenario/{seed}")  # noqa: S311
    big, torch_model = seed % BIG_EVERY == 7, seed % TORCH_EVERY == 0
    lies = rng.random() < LIAR_CHANCE and not big
    count = rng.choice([4, 4, 4, 5, 7]) if lies else rng.choice([1, 2, 3, 3, 4, 4, 5, 6])
    names = [f"n{i}" for i in range(count)]
    ends = rng.choice(ENDS) if big or rng.random() < END_CHANCE else ""
    chaos_s = rng.uniform(3, 10)
    recipe = _draw_recipe(rng, seed, count, ends, torch_model, big)
    return Scenario(
        seed=seed,
        torch=torch_model,
        recipe=recipe,
        coordinator=_draw_machine(rng, "coordinator", inbound=True, big=big),
        nodes=tuple(_draw_machine(rng, name, inbound=rng.random() < 0.7, big=big) for name in names),
        size=BIG_SIZE if big else rng.choice([12, 40, 300]),
        step_s=max(
            rng.choice([0.05, 0.1, 0.3]), OUTSIDE_STEP_S if recipe.strategy.preset in OUTSIDE else 0.0
        ),
        chaos_s=chaos_s,
        loss=rng.choice([0, 0, 0.01, 0.05, 0.15]),
        duplicate=rng.choice([0, 0, 0.05, 0.2]),
        reorder=rng.choice([0, 0, 0.1, 0.5]),
        corrupt=rng.choice([0, 0, 0, 0.1]),
        trouble_every_s=rng.choice([0.7, 1.5, 3.0, 100.0]),
        point_chance=rng.choice([0, 0, 0.001, 0.005]),
        troubles=_draw_troubles(rng, ends),
        ends=ends,
        stop_at_s=rng.uniform(1, chaos_s),
        liars=_draw_liars(rng, names) if lies else (),
    )


def with_standbys(scenario: Scenario, kind: str = "") -> Scenario:
    """The same with one or two coordinators that stand by, and trouble for whoever leads: on one database ("shared"),
    by majority ("members"), or as the seed has it ("")."""
    rng = random.Random(f"standbys/{scenario.seed}")  # noqa: S311
    names = [f"standby-{number}" for number in range(1, rng.choice([2, 2, 3]))]
    machines = tuple(_draw_machine(rng, name, inbound=True, big=scenario.size == BIG_SIZE) for name in names)
    others = rng.sample(scenario.troubles, min(3, len(scenario.troubles)))
    members = kind == "members" or (not kind and scenario.seed % MEMBERS_EVERY == 0)
    recipe = scenario.recipe
    if members:
        voters = {"coordinators": (scenario.coordinator.name, *names)}
        recipe = recipe.model_copy(update={"membership": recipe.membership.model_copy(update=voters)})
    return replace(
        scenario,
        recipe=recipe,
        standbys=machines,
        troubles=(*sorted(others), *FAILOVER_KINDS),
        trouble_every_s=min(scenario.trouble_every_s, 2.0),
        chaos_s=scenario.chaos_s + 6.0,
    )


def _draw_troubles(rng: random.Random, ends: str) -> tuple[str, ...]:
    """Some of the kinds. Nobody new is let into a run that is over, so there no machine burns down for good."""
    kinds = [kind for kind in KINDS if kind != "wipe" or not ends]
    return tuple(sorted(rng.sample(kinds, rng.randint(1, len(kinds)))))


def _draw_liars(rng: random.Random, names: list[str]) -> tuple[tuple[str, str], ...]:
    chosen = rng.sample(names, rng.randint(1, (len(names) - 1) // 3))
    return tuple((name, rng.choice(sorted(LIARS))) for name in sorted(chosen))


def _draw_machine(rng: random.Random, name: str, *, inbound: bool, big: bool) -> Machine:
    link = Link(
        latency_s=rng.choice([0.001, 0.01, 0.04, 0.12]),
        jitter_s=rng.choice([0, 0.005, 0.05]),
        up_bytes_s=rng.choice([3e6, 1e8] if big else [1e5, 1e6, 1e8]),
        down_bytes_s=rng.choice([3e6, 1e8] if big else [1e6, 1e8]),
    )
    return Machine(
        name=name,
        link=link,
        speed=rng.choice([0.2, 0.7, 1, 1, 1, 5]),
        inbound=inbound,
        skew_s=rng.choice([0, 0, -3600, 40]) * rng.random(),
        rate=rng.choice([1, 1, 0.98, 1.03]),
    )


def _draw_budget(rng: random.Random, ends: str, big: bool) -> dict[str, Any]:
    match ends:
        case "rounds":
            return {"rounds": rng.randint(1, 2 if big else 5)}
        case "tokens":
            return {"tokens": 1 if big else rng.choice([1, 20, 60])}
        case "seconds":
            return {"seconds": rng.uniform(1, 3 if big else 8)}
    return {"rounds": 1000}


def _draw_strategy(rng: random.Random, big: bool, may_grow: bool) -> dict[str, Any]:
    """A composition of pieces, from the plainest to those that never wait for anybody."""
    rotates = rng.random() < 0.2
    deadline_s = rng.choice([4.0, 10.0])
    steps = rng.choice([1, 3, 8])
    overlap = rng.choice([0, 0, 1, steps])
    kind = rng.choice(["all-or-deadline"] * 2 + ["quorum"] + ([] if rotates else ["arrivals"]))
    codecs: list[dict[str, Any]] = [
        {"kind": "none"},
        {"kind": "fp16"},
        {"kind": "int8"},
        {"kind": "int8", "error_feedback": True},
        {"kind": "two-bit", "error_feedback": True},
        {"kind": "chunked-top-k", "chunk": 16, "density": 0.25, "error_feedback": True},
    ]
    seals: dict[str, dict[str, Any]] = {
        "all-or-deadline": {"deadline_s": deadline_s},
        "quorum": {
            "quorum": rng.choice([0.5, 0.75, 2.0]),
            "grace_s": rng.choice([0.0, 0.5, 2.0]),
            "deadline_s": deadline_s,
            "staleness": 0 if rotates else rng.choice([0, 1, 3]),
        },
        "arrivals": {
            "min_interval_s": rng.choice([0.3, 1.0]),
            "staleness": rng.choice([1, 4, 20]),
            "adaptive": rng.random() < 0.5,
            "attest_every": rng.choice([1, 2, 5]),
        },
    }
    return {
        "preset": rng.choice(BASES),
        "schedule": {
            "steps": steps,
            "overlap": overlap,
            "fragments": rng.choice([2, 3]) if rotates else rng.choice([1, 1, 2, 3]),
            "order": "rotate" if rotates else "all",
            "warmup_rounds": rng.choice([0, 0, 2]),
            **rng.choice(
                [{}, {}, {"seconds": 0.5}, {"steps_last": 5, "growth": "linear"} if may_grow else {}]
            ),
        },
        "codec": {"kind": "none"} if big else rng.choice(codecs),
        "seal": {"kind": kind, **seals[kind]},
        "merge": _draw_merge(rng, keeps_progress=overlap > 0),
        "weights": {
            "kind": rng.choice(["samples", "samples", "tokens-squared-per-step"]),
            "discount": rng.choice([0.0, 0.5, 1.0]),
        },
    }


def _outside(preset: str, drawn: dict[str, Any], has_end: bool) -> dict[str, Any]:
    """As much of a drawn strategy as goes with one of those presets."""
    schedule = {"steps": 1, **{key: drawn["schedule"][key] for key in ("fragments", "order")}}
    turns = schedule["fragments"] if schedule["order"] == "rotate" else 1
    section: dict[str, Any] = {
        "preset": preset,
        "schedule": schedule,
        "seal": drawn["seal"],
        "weights": drawn["weights"],
        "outer": {"lr": 0.05, "warmup_rounds": 2, "decay": "cosine" if has_end else "none"},
    }
    if preset == "onebit-adam":
        section["seal"] = {"kind": "all-or-deadline", "deadline_s": 10.0}
        section["outer"]["freeze_after"] = 2
        section["codec"] = {"warmup_rounds": 2 * turns}
    if preset == "demo":
        section["codec"] = {"chunk": 16, "warmup_rounds": 2}
    return section


def _in_pairs(drawn: dict[str, Any], global_every: int) -> dict[str, Any]:
    """As much of a drawn strategy as goes with nodes that meet in pairs."""
    seal, codec = dict(drawn["seal"]), drawn["codec"]
    if seal["kind"] == "arrivals":
        seal = {"kind": "all-or-deadline", "deadline_s": 4.0}
    if seal["kind"] == "quorum":
        seal["staleness"] = 0
    return {
        "preset": IN_PAIRS,
        "schedule": {**drawn["schedule"], "order": "all"},
        "codec": {name: value for name, value in codec.items() if name != "error_feedback"},
        "seal": seal,
        "merge": {"kind": "pairs", "global_every": global_every},
        "weights": drawn["weights"],
    }


def _through_digests(drawn: dict[str, Any], number: int) -> dict[str, Any]:
    """As much of a drawn strategy as goes with nodes that fold for one another."""
    seal = dict(drawn["seal"])
    if seal["kind"] == "arrivals":
        seal = {"kind": "all-or-deadline", "deadline_s": 4.0}
    if seal["kind"] == "quorum":
        seal["staleness"] = 0
    digest = {
        "kind": ("two-bit", "int8", "fp16", "none", "one-bit")[number % 5],
        "folders": (3, 1, 2, 3)[number % 4],
        "shards": 1 + number % 7,
        "when": "auto" if number % 3 == 1 else "always",
        "deadline_s": (2.0, 6.0)[number % 2],
    }
    return {**drawn, "seal": seal, "digest": digest}


def _draw_merge(rng: random.Random, *, keeps_progress: bool) -> dict[str, Any]:
    if not keeps_progress and rng.random() < 0.5:
        return {"kind": "replace"}
    kind = rng.choice(["mix", "mix", "add-delta", "elastic"])
    return {"kind": kind} if kind == "add-delta" else {"kind": kind, "alpha": rng.choice([0.5, 1.0])}


def _draw_recipe(
    rng: random.Random, seed: int, nodes: int, ends: str, torch_model: bool, big: bool
) -> Recipe:
    heartbeat_s = rng.choice([1.0, 1.0, 2.0])
    values: dict[str, Any] = {
        "name": f"seed {seed}",
        "seed": seed,
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 8 if torch_model else 2},
        "strategy": _draw_strategy(rng, big, may_grow=ends != "seconds"),
        "budget": _draw_budget(rng, ends, big),
        "membership": {
            "min_nodes": min(nodes, rng.choice([1, 2])),
            "heartbeat_s": heartbeat_s,
            "lease_s": rng.choice([4.0, 6.0]),
            "reconnect_s": rng.choice([0.5, 2.0]),
        },
        "storage": {
            "receipts": rng.choice([1, 1, 2]),
            "snapshot_every": rng.choice([1, 2, 4]),
            "keep_bytes": rng.choice([0, 0, 10**9]),
            "archive": rng.random() < 0.3,
        },
        "evaluation": {"every": rng.choice([1, 3]), "batches": 1},
    }
    if seed % PAIRS_EVERY == 3:
        values["strategy"] = _in_pairs(values["strategy"], 1 + seed // PAIRS_EVERY % 4)
    if seed % DIGESTS_EVERY == 4:
        values["strategy"] = _through_digests(values["strategy"], seed // DIGESTS_EVERY)
    if seed % AWARE_EVERY == 6:
        values["strategy"]["schedule"].pop("seconds", None)  # The planner decides how long a round is.
        values["strategy"]["planner"] = {"kind": "aware"}
    if seed % OUTSIDE_EVERY == 5 and not torch_model and not big:
        preset = OUTSIDE[seed // OUTSIDE_EVERY % len(OUTSIDE)]
        values["strategy"] = _outside(preset, values["strategy"], has_end=ends != "seconds")
        values["inner"] = {"batch_size": 2}
    return recipe_from(values)
