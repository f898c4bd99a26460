"""`shoal bench audit`, small: what blatant forgers meet, and what it costs."""

from __future__ import annotations

from shoal.apps.bench.attacks_setting import Cell, recipe_for, rule_of
from shoal.apps.bench.audit_games import play
from shoal.apps.bench.audit_hardware import Hardware
from shoal.apps.bench.audit_hardware import measure as measure_hardware
from shoal.apps.bench.audit_measuring import measure
from shoal.audit.spec import AuditSpec

SPEC = AuditSpec(rate=0.05)


def test_a_forger_is_found_within_the_means() -> None:
    recipe = recipe_for(Cell(attack="", nodes=8, codec="int8", rounds=3), rule_of("mean"))
    seen = measure(recipe, 8, SPEC)
    assert min(one.distance for rounds in seen.forged["sign-flip"] for one in rounds) > SPEC.tolerance
    games = [play(seen, "sign-flip", SPEC, 0.3, 80, seed) for seed in range(20)]
    assert sum(game.found_after is not None for game in games) >= 18
    honest = [play(seen, "", SPEC, 0.3, 80, seed) for seed in range(5)]
    assert all(game.found_after is None for game in honest)
    assert sum(game.replays for game in honest) <= 0.05 * sum(game.claims for game in honest)
    assert play(seen, "copy", SPEC, 0.3, 30, 7) == play(seen, "copy", SPEC, 0.3, 30, 7)


def test_honest_hardware_is_far_from_being_accused() -> None:
    same, other = Hardware("the same"), Hardware("eighths of a batch", parts=8)
    for codec in ("int8", "sparse"):
        exact, near = measure_hardware("digits", codec, "fp32", (same, other), 3)
        assert exact.largest == 0.0
        assert near.largest < SPEC.tolerance / 10
