"""What comes before a rule: even lengths, one vote for the same, buckets, neighbours."""

import dataclasses

import pytest
import torch

from shoal.aggregate.base import LARGEST
from shoal.aggregate.mixing import buckets, distinct, even_lengths, nearest_neighbours
from shoal.aggregate.rows import Rows, lower_median, nearest, rows_of

from .gatherings import gathered


def rows_from(*values: list[float], weights: list[int] | None = None, seed: str | None = None) -> Rows:
    return rows_of(dataclasses.replace(gathered(list(values), weights), seed=seed))


def read(rows: Rows) -> list[list[float]]:
    return [row.tolist() for row in rows.read(0, rows.gathering.numel, torch.device("cpu"))]


def test_all_come_to_the_median_length_and_nothing_is_left_out_but_nothing() -> None:
    rows = even_lengths(rows_from([3.0, 4.0], [0.0, 50.0], [0.0, 0.0], [1.0, 0.0], weights=[1, 2, 3, 2]))
    assert read(rows) == [[3.0, 4.0], [0.0, 5.0], [5.0, 0.0]]
    assert rows.weights == pytest.approx((0.2, 0.4, 0.4))


def test_where_nobody_sent_anything_they_stay() -> None:
    assert len(even_lengths(rows_from([0.0], [0.0]))) == 2


def test_copies_have_one_vote_and_one_weight() -> None:
    original, copy, others = [10.0, 0.0], [10.0, 0.1], ([0.0, 9.0], [-8.0, 1.0], [5.0, 5.0])
    rows = distinct(rows_from(original, *others, copy, copy, weights=[1, 1, 1, 1, 1, 4]))
    assert len(rows) == 4
    assert read(rows)[0] == pytest.approx([10.0, 0.1 * 5 / 6])
    assert rows.weights == pytest.approx((0.4, 0.2, 0.2, 0.2))


def test_far_liars_do_not_make_the_honest_ones_the_same() -> None:
    honest = [[float(i == j) for j in range(6)] for i in range(6)]
    assert len(distinct(rows_from(*honest, *[[1000.0] * 6] * 4))) == 7


def test_a_bridge_does_not_make_two_honest_ones_the_same() -> None:
    honest = [[float(i == j) for j in range(6)] for i in range(6)]
    stones = [[1 - share, share, 0.0, 0.0, 0.0, 0.0] for share in (0.2, 0.4, 0.6, 0.8)]
    assert len(distinct(rows_from(*honest, *stones))) == 10
    assert len(distinct(rows_from(*honest, stones[0], stones[0]))) == 6


def test_where_all_are_the_same_they_stay() -> None:
    assert len(distinct(rows_from([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]))) == 3


def test_neighbours_are_mixed_by_weight_and_ties_share_the_last_place() -> None:
    rows = nearest_neighbours(rows_from([0.0], [1.0], [-1.0], [9.0], weights=[2, 1, 1, 1]), 2)
    # The first has two at the same distance: half of each.
    assert read(rows)[0] == pytest.approx([0.0])
    assert read(rows)[1] == pytest.approx([1 / 3])
    assert read(rows)[3] == pytest.approx([5.0])


def test_nobody_to_bear_is_nobody_mixed() -> None:
    rows = rows_from([0.0], [1.0])
    assert nearest_neighbours(rows, 0) is rows


def test_buckets_hold_everybody_once_and_are_drawn_by_the_seed() -> None:
    values = [[float(2**i)] for i in range(5)]
    first, second = (buckets(rows_from(*values, seed=seed), 2) for seed in ("a", "b"))
    assert len(first) == 3 and sum(first.weights) == pytest.approx(1.0)
    sums = [sum(share > 0 for share in column) for column in zip(*first.mix, strict=True)]
    assert sums == [1] * 5
    assert read(first) != read(second)


def test_mixtures_of_mixtures_have_the_products_of_what_they_come_to() -> None:
    random = torch.Generator().manual_seed(0)
    values = [torch.randn(40, generator=random).tolist() for _ in range(9)]
    rows = nearest_neighbours(buckets(even_lengths(rows_from(*values, seed="s")), 2), 1)
    found = torch.tensor(read(rows), dtype=torch.float64)
    assert torch.allclose(torch.tensor(rows.products, dtype=torch.float64), found @ found.T, rtol=1e-5)


def test_the_least_share_the_last_places() -> None:
    assert nearest([3.0, 1.0, 2.0], 2) == [0.0, 1.0, 1.0]
    assert nearest([1.0, 2.0, 2.0, 2.0], 2) == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])
    assert lower_median([4.0, 1.0, 3.0, 2.0]) == 2.0


def test_rows_are_read_without_minus_zeros_and_no_larger_than_an_aggregate() -> None:
    rows = rows_from([-0.0, 3e38], [0.0, -3e38])
    found = rows.read(0, 2, torch.device("cpu"))
    assert [torch.signbit(row).tolist() for row in found] == [[False, False], [False, True]]
    assert max(abs(float(row[1])) for row in found) == LARGEST
