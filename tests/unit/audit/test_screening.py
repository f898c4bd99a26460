"""Scores: the odd ones stand out, whatever the way."""

from __future__ import annotations

import pytest
import torch

from shoal.audit.screening import rows_of, scores
from shoal.audit.selection import MOST_SCORE


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
    before = scores(rows, None, None)
    rows[0] = FORGERIES[kind](rows)
    after = scores(rows, None, None)
    others = [score for place, score in enumerate(after) if place > 1]
    assert after[0] > max(others) and after[0] > before[0] and after[0] >= 3000


def test_an_update_of_the_last_round_stands_out() -> None:
    earlier, rows = _rows(seed=1), _rows(seed=2)
    rows[4] = earlier[7]
    found = scores(rows, earlier, None)
    assert found[4] == max(found) and found[4] >= 3000


def test_an_update_that_does_nothing_for_its_samples_scores_higher() -> None:
    numbers = torch.Generator().manual_seed(3)
    slopes = torch.randn(12, 2000, generator=numbers)
    rows = _rows() + slopes * 0.5
    honest = scores(rows, None, slopes)
    rows[5] -= slopes[5] * 0.5
    assert scores(rows, None, slopes)[5] > max(honest[5], 1000)


def test_scores_are_bounded_and_of_whole_seals() -> None:
    for rows in (_rows(1), _rows(2), torch.zeros(3, 5)):
        found = scores(rows, None, None)
        assert len(found) == len(rows) and all(0 <= score <= MOST_SCORE for score in found)
    assert rows_of([None, None], "seed").shape[0] == 2
