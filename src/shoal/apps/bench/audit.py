"""`shoal bench audit`: what audits find, what they cost, and how far honest hardware is from being accused.

In flow a rate, a fleet and a forger's habits; out flow one dictionary. Invariant: every number comes from training that
was really done here: scores and distances are measured, and the games played with them use the draw and the standings
that nodes use.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shoal.apps.bench import audit_hardware as hardware
from shoal.apps.bench.attacks_setting import Cell, recipe_for, rule_of
from shoal.apps.bench.audit_games import Played, play
from shoal.apps.bench.audit_measuring import KINDS, Measured, measure
from shoal.apps.progress import tracked
from shoal.audit.spec import AuditSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    rate: float = 0.05
    share: float = 0.3
    """Of its claims, what a forger forges."""
    nodes: int = 20
    rounds: int = 50
    games: int = 500
    """Of each kind of forgery; with 0, honest claims are run again and nothing else is done."""
    codec: str = "int8"
    claims: int = 4
    """Honest claims of digits to run again, in each setting of the hardware's part; of the GPT, whose re-runs take ten
    times as long, a tenth of that, and no fewer than 4."""
    seed: int = 0
    others: tuple[hardware.Hardware, ...] = hardware.OTHERS


def bench(setting: Setting, say: Say) -> dict[str, Any]:
    torch.set_num_threads(1)
    began, spec = time.monotonic(), AuditSpec(rate=setting.rate)
    found = _forgers(setting, spec, say) if setting.games else {}
    say("honest claims again, on other hardware")
    return {**found, **_honest(setting, spec, say), "seconds": round(time.monotonic() - began, 1)}


def _forgers(setting: Setting, spec: AuditSpec, say: Say) -> dict[str, Any]:
    """How soon each kind of forger is found, and at what cost."""
    cell = Cell(attack="", nodes=setting.nodes, codec=setting.codec, rounds=setting.rounds, seed=setting.seed)
    recipe = recipe_for(cell, rule_of("mean"))
    samples = recipe.strategy.schedule.steps * recipe.inner.batch_size
    looks = spec.looks_cost(samples, setting.nodes)
    say(f"{setting.rounds} rounds of {setting.nodes} nodes, with every forgery on the side")
    seen = measure(recipe, setting.nodes, spec)
    say(f"{setting.games} games of each kind")
    played = {kind: _games(seen, kind, spec, setting) for kind in tracked((*KINDS, ""), "kinds")}
    kinds = {kind: _played(seen, kind, played[kind]) for kind in KINDS}
    honest = played[""]
    claims, replays = sum(game.claims for game in honest), sum(game.replays for game in honest)
    return {
        "rate": setting.rate,
        "nodes": setting.nodes,
        "rounds": setting.rounds,
        "forged_share": setting.share,
        "codec": setting.codec,
        "seed": setting.seed,
        "games": setting.games,
        "cost": round(looks + replays / claims, 5),
        "cost_screening": round(looks, 5),
        "cost_replays": round(replays / claims, 5),
        "found": min(one["found"] for one in kinds.values()),
        "found_uniform": round(1 - (1 - setting.rate * setting.share) ** setting.rounds, 4),
        "kinds": kinds,
    }


def _played(seen: Measured, kind: str, games: list[Played]) -> dict[str, Any]:
    found = [game.found_after for game in games if game.found_after is not None]
    apart = [one.distance for rounds in seen.forged[kind] for one in rounds]
    return {
        "found": round(len(found) / len(games), 4),
        "rounds_median": statistics.median(found) if found else None,
        "distance_least": round(min(apart), 3),
        "distance_median": round(statistics.median(apart), 3),
    }


def _games(seen: Measured, kind: str, spec: AuditSpec, setting: Setting) -> list[Played]:
    """Of one kind of forger, or (no kind) of nobody who forges."""
    first = setting.seed * 1_000_003
    return [
        play(seen, kind, spec, setting.share, setting.rounds, first + number)
        for number in tracked(range(setting.games), "games")
    ]


def _honest(setting: Setting, spec: AuditSpec, say: Say) -> dict[str, Any]:
    """How far honest re-runs were, and what that says of the tolerance."""
    found, ran = [], 0
    settings = list(itertools.product(hardware.MODELS, hardware.CODECS, hardware.PRECISIONS))
    for model, codec, precision in tracked(settings, "settings"):
        say(f"  {model}, {codec}, {precision}")
        claims = setting.claims if model == "digits" else max(4, setting.claims // 10)
        found += hardware.measure(model, codec, precision, setting.others, claims)
        ran += claims
    distances = [distance for one in found for distance in one.distances]
    accused = sum(distance > spec.tolerance for distance in distances)
    return {
        "tolerance": spec.tolerance,
        "honest_claims": ran,
        "honest_replays": len(distances),
        "false_accusations": accused,
        "false_rate_at_most": _bound(accused, ran),
        "honest_distance_largest": max(distances, default=0.0),
        "hardware": [
            {
                "model": one.model,
                "codec": one.codec,
                "precision": one.precision,
                "hardware": one.hardware,
                "claims": len(one.distances),
                "largest": one.largest,
            }
            for one in found
        ],
    }


def _bound(accused: int, claims: int) -> float:
    """With 95% confidence the rate of false accusations is no more than this (exact where there were none)."""
    return round(1 - math.pow(0.05, 1 / max(1, claims)), 6) if not accused else accused / claims * 3


def table(found: dict[str, Any]) -> str:
    return "\n".join((*(_forgers_told(found) if "kinds" in found else ()), _honest_told(found)))


def _forgers_told(found: dict[str, Any]) -> list[str]:
    lines = [
        f"extra compute {found['cost']:.2%}: {found['cost_screening']:.2%} looking at claims, "
        f"{found['cost_replays']:.2%} running claims again",
        f"a node that forges {found['forged_share']:.0%} of its claims, within {found['rounds']} rounds"
        f" (drawn evenly: {found['found_uniform']:.1%}):",
    ]
    for kind, one in found["kinds"].items():
        when = f"after {one['rounds_median']:g} rounds" if one["rounds_median"] else "never"
        lines.append(f"  {kind:<14} found in {one['found']:.1%} of games, {when}")
    return lines


def _honest_told(found: dict[str, Any]) -> str:
    return (
        f"honest claims again on other hardware: {found['false_accusations']} of {found['honest_claims']} accused,"
        f" so at most {found['false_rate_at_most']:.2g} of them;"
        f" at most {found['honest_distance_largest']:.2g} apart, {found['tolerance']:g} allowed"
    )
