"""Coordinate by coordinate: the median, and the mean of what is left when the ends are cut off.

Every row has one vote in every coordinate; weights count in mixtures before it only. Where most updates leave most
values out, as sparse codecs do, the middle of a coordinate is zero: put `bucket` or `nnm` before, or take another rule.
"""

from __future__ import annotations

import torch

from shoal.aggregate.base import Combine, float32
from shoal.aggregate.ordering import sort_rows
from shoal.aggregate.rows import Rows
from shoal.aggregate.tolerance import MAJORITY, Tolerance
from shoal.aggregate.voting import Before, Voted


class _TrimmedMean:
    name = "trimmed-mean"
    guard = MAJORITY

    def decide(self, rows: Rows, liars: int) -> Combine:
        return _middle(rows, liars)


class _Median:
    name = "median"
    guard = MAJORITY

    def decide(self, rows: Rows, liars: int) -> Combine:
        return _middle(rows, (len(rows) - 1) // 2)


def _middle(rows: Rows, cut: int) -> Combine:
    """The mean of all but the `cut` least and the `cut` largest values."""
    kept = slice(cut, len(rows) - cut)
    factor = float32(rows.reach / (len(rows) - 2 * cut))

    def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
        first, *others = sort_rows(rows.read(start, stop, out.device))[kept]
        out.copy_(first)
        for values in others:
            out.add_(values)
        out.mul_(factor)

    return combine


def trimmed_mean(
    f: float = 0.3, even: bool = False, distinct: bool = False, bucket: int = 1, nnm: bool = False
) -> Voted:
    """In every coordinate the mean of what is left without the f least and the f largest values (arXiv 1803.01498)."""
    return Voted(_TrimmedMean(), Tolerance(f), Before(even, distinct, bucket, nnm))


def median(
    f: float = 0.3, even: bool = False, distinct: bool = False, bucket: int = 1, nnm: bool = False
) -> Voted:
    """In every coordinate the median, or the mean of the two in the middle (arXiv 1803.01498). `f` matters to `nnm`
    alone."""
    return Voted(_Median(), Tolerance(f), Before(even, distinct, bucket, nnm))
