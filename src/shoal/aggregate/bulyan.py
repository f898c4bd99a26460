"""Bulyan: those whom Krum chooses one after another, and of these, in every coordinate, the values in the middle."""

from __future__ import annotations

import torch

from shoal.aggregate.base import Combine, float32
from shoal.aggregate.krum import scores
from shoal.aggregate.ordering import sort_rows
from shoal.aggregate.rows import Rows
from shoal.aggregate.tolerance import Guard, Tolerance
from shoal.aggregate.voting import Before, Voted


class _Bulyan:
    name = "bulyan"
    guard = Guard(4, 3)

    def decide(self, rows: Rows, liars: int) -> Combine:
        chosen = _chosen(rows.apart, liars)
        kept = len(chosen) - 2 * liars
        factor = float32(rows.reach / kept)

        def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            every = rows.read(start, stop, out.device)
            ordered = sort_rows([every[i] for i in chosen])
            begin = _nearest_to_the_median(ordered, kept)
            out.zero_()
            for number, values in enumerate(ordered):
                inside = torch.le(begin, number).logical_and_(torch.gt(begin, number - kept))
                out.add_(torch.mul(values, inside.to(torch.float32), out=scratch))
            out.mul_(factor)

        return combine


def _chosen(apart: list[list[float]], liars: int) -> list[int]:
    """The rows that Krum likes best, one after another, n - 2f of them; ties by the seal's order."""
    left, chosen = list(range(len(apart))), []
    for _ in range(len(apart) - 2 * liars):
        found = scores([[apart[i][j] for j in left] for i in left], liars)
        chosen.append(left.pop(found.index(min(found))))
    return chosen


def _nearest_to_the_median(ordered: list[torch.Tensor], kept: int) -> torch.Tensor:
    """For every coordinate, with which of its sorted values the `kept` nearest to their median begin."""
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]).mul_(0.5)
    begin = torch.zeros_like(middle)
    least: torch.Tensor | None = None
    for first in range(count - kept + 1):
        furthest = torch.maximum(middle - ordered[first], ordered[first + kept - 1] - middle)
        if least is None:
            least = furthest
            continue
        nearer = torch.lt(furthest, least)
        begin.masked_fill_(nearer, first)
        least = torch.minimum(furthest, least)
    return begin


def bulyan(
    f: float = 0.2, even: bool = False, distinct: bool = False, bucket: int = 1, nnm: bool = False
) -> Voted:
    """Krum's choice n - 2f times, then in every coordinate the mean of the n - 4f values nearest to the median (arXiv
    1802.07927). Against liars that hide a large lie in few coordinates. One vote a row; weights count in mixtures
    before it only. It needs more honest updates than any other rule."""
    return Voted(_Bulyan(), Tolerance(f), Before(even, distinct, bucket, nnm))
