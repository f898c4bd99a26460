"""Network coordinates from few measurements."""

from __future__ import annotations

import itertools
import random

from shoal.base.ids import NodeId
from shoal.measure.coordinates import FARTHEST_S, Coordinates

NODES = [NodeId(f"{number:064x}") for number in range(30)]


def true_rtt_s(one: int, two: int) -> float:
    """Three regions: 20 ms inside one, 80 to 200 ms across."""
    across = {(0, 0): 0.02, (1, 1): 0.02, (2, 2): 0.02, (0, 1): 0.08, (1, 2): 0.16, (0, 2): 0.2}
    return across[tuple(sorted((one % 3, two % 3)))]  # type: ignore[index]


def test_pairs_that_were_never_measured_are_foretold() -> None:
    places, rng = Coordinates(), random.Random(2)
    pairs = list(itertools.combinations(range(30), 2))
    seen = rng.sample(pairs, len(pairs) // 4)
    for _ in range(40):
        for one, two in seen:
            places.measured(NODES[one], NODES[two], true_rtt_s(one, two) * (0.95 + 0.1 * rng.random()))
    errors = []
    for one, two in pairs:
        if (one, two) not in seen:
            expected = places.expected_s(NODES[one], NODES[two])
            assert expected is not None
            errors.append(abs(expected - true_rtt_s(one, two)) / true_rtt_s(one, two))
    assert sorted(errors)[len(errors) // 2] < 0.15


def test_nothing_is_said_of_the_unknown_and_nonsense_moves_nobody_far() -> None:
    places = Coordinates()
    assert places.expected_s(NODES[0], NODES[1]) is None
    for value in (-1.0, 0.0, 1e300, float("inf"), float("nan")):
        places.measured(NODES[0], NODES[1], value)
    assert places.expected_s(NODES[0], NODES[1]) is None
    for _ in range(1000):
        places.measured(NODES[0], NODES[1], FARTHEST_S)
        places.measured(NODES[0], NODES[1], 0.001)
    expected = places.expected_s(NODES[0], NODES[1])
    assert expected is None or 0 <= expected <= 4 * FARTHEST_S
