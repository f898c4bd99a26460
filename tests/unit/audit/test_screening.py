"""Scores: the odd ones stand out, whatever the way."""

from __future__ import annotations

import pytest
import torch

from shoal.audit.effects import Looking, Rung
from shoal.audit.screening import rows_of, scores
from shoal.audit.selection import MOST_SCORE
from shoal.audit.spec import MICRO, AuditSpec


def _rows(count: int = 12, size: int = 2000, seed: int = 0) -> torch.Tensor:
    """Updates that share a direction."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(1, size, generator=numbers) + torch.randn(count, size, generator=numbers)


FORGERIES = {
    "opposite": lambda rows: -rows[0],
    "long": lambda rows: rows[0] * 10,
    "copy": lambda rows: rows[1] * 1.001,
    "the others' mean": lambda rows: rows[1:].mean(dim=0),
    "noise": lambda rows: torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(9)),
    "nothing": lambda rows: torch.zeros(rows.shape[1]),
    "not a number": lambda rows: torch.full((rows.shape[1],), float("nan")),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forgery_stands_out(kind: str) -> None:
    rows = _rows()
    before = scores(rows)
    rows[0] = FORGERIES[kind](rows)
    after = scores(rows)
    others = [score for place, score in enumerate(after) if place > 1]
    assert after[0] > max(others) and after[0] > before[0] and after[0] >= 3000


def test_an_update_of_the_last_round_stands_out() -> None:
    earlier, rows = _rows(seed=1), _rows(seed=2)
    rows[4] = earlier[7]
    found = scores(rows, earlier)
    assert found[4] == max(found) and found[4] >= 3000


def test_an_update_of_other_samples_is_doubted() -> None:
    numbers = torch.Generator().manual_seed(3)
    earlier = [_rows(seed=seed) for seed in (5, 6)]
    pulls = torch.randn(12, 2000, generator=numbers)
    rows = _rows() + pulls * 0.5
    seen: list[tuple[int, int]] = []

    def look(place: int, rung: int) -> torch.Tensor:
        seen.append((place, rung))
        return pulls[place]

    looking = Looking(look, earlier, [Rung(12, 2.0), Rung(3, 8.0)], "seed")
    honest = scores(rows, earlier[-1], looking)
    rows[5] -= pulls[5] * 0.5
    forged = scores(rows, earlier[-1], looking)
    assert forged[5] == max(forged) and forged[5] > max(honest[5], 1000)
    assert seen.count((5, 1)) == 1 and len(seen) == len(set(seen)), "a look is paid for once"
    assert len([rung for _, rung in seen if rung == 1]) <= 6


def test_what_updates_differ_by_anyway_is_taken_out_of_them() -> None:
    numbers = torch.Generator().manual_seed(8)
    ways = torch.randn(6, 300, generator=numbers)

    def seal() -> torch.Tensor:
        """Updates that differ in a few directions, which are always the same, and a little in all others."""
        return 10 * torch.randn(9, 6, generator=numbers) @ ways + torch.randn(9, 300, generator=numbers)

    earlier, rows = [seal() for _ in range(4)], seal()
    looking = Looking(lambda place, rung: rows[0], iter(earlier), [Rung(9, 2.0)], "seed")
    found = looking.whitened(rows)

    def along(spread: torch.Tensor) -> float:
        return float((spread @ torch.linalg.qr(ways.T).Q).norm() / spread.norm())

    assert along(rows - rows.mean(dim=0)) > 0.99 and along(found) < 0.2
    directions = [_lengths_one(one) for one in (*earlier, rows)]
    known = torch.cat(directions).double()
    inverse = torch.linalg.inv(known @ known.T + 0.03 * torch.eye(len(known), dtype=known.dtype))
    expected = 0.03 * (inverse @ known)[-10:-1]
    assert torch.allclose(found.double(), expected, atol=1e-6), "at once and by blocks it is the same"


def _lengths_one(rows: torch.Tensor) -> torch.Tensor:
    mean = rows.mean(dim=0, keepdim=True)
    found = torch.cat([rows - mean, mean])
    return found / found.norm(dim=1, keepdim=True)


def test_an_earlier_update_that_is_no_number_spoils_no_scores() -> None:
    numbers = torch.Generator().manual_seed(4)
    earlier, pulls = [_rows(seed=seed) for seed in (5, 6, 7)], torch.randn(12, 2000, generator=numbers)
    rows = _rows() + pulls * 0.5
    rows[5] -= pulls[5] * 0.5
    earlier[1][3] = float("nan")
    earlier[2][4] = float("inf")
    looking = Looking(lambda place, rung: pulls[place], earlier, [Rung(12, 2.0), Rung(3, 8.0)], "seed")
    found = scores(rows, earlier[-1], looking)
    assert found[5] == max(found) and sorted(found)[-2] < 1000


def test_nobody_is_doubted_where_looks_tell_nothing() -> None:
    rows, nothing = _rows(), torch.zeros(2000)
    looking = Looking(lambda place, rung: nothing, [], [Rung(12, 2.0), Rung(3, 8.0)], "seed")
    assert scores(rows, None, looking) == scores(rows)


def test_looks_cost_what_the_recipe_pays_for() -> None:
    for samples, claims in ((320, 20), (2048, 7), (100_000, 200)):
        spec = AuditSpec(rate=0.05)
        assert spec.looks_cost(samples, claims) + spec.replays_micro / MICRO <= 0.0502, (samples, claims)


def test_scores_are_bounded_and_of_whole_seals() -> None:
    for rows in (_rows(1), _rows(2), torch.zeros(3, 5)):
        found = scores(rows)
        assert len(found) == len(rows) and all(0 <= score <= MOST_SCORE for score in found)
    assert rows_of([None, None], "seed").shape[0] == 2
