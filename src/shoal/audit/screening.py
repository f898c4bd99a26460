"""How odd each update of a seal is, beside the others: scores that aim audits.

In flow the updates of a seal and of some before it, and a way to look at a few samples of each assignment; out flow
whole numbers. Invariant: a score accuses nobody; whoever is odd is looked at more often, and is cleared by it.

Four measures, each in standard deviations of the others' (by medians, so that a few liars do not hide one another):
the length; the direction beside the others' mean, both ways; the likeness to the nearest other update, of this seal or
the last; and, as odds, whether it goes the way that its own samples pull (`effects.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from shoal.aggregate.sketch import EXACT_CHUNKS, Vector, sketches
from shoal.audit.effects import Looking, doubts
from shoal.audit.selection import MOST_SCORE
from shoal.codec.base import CHUNK, Source, decode_whole

_LEAST_SPREAD = {"length": 0.05, "direction": 0.01, "likeness": 0.02}
"""No measure is taken to be steadier than this: a few nodes may be alike by chance."""
_USUAL = 2.0
Parts = Sequence[tuple[int, Source]]


def rows_of(updates: Sequence[Parts | None], seed: str) -> torch.Tensor:
    """One row for each update: its values, or where they are many a sketch of them. Zeros for None."""
    shape = next((parts for parts in updates if parts is not None), None)
    if shape is None:
        return torch.zeros(len(updates), 1)
    columns = []
    for place, (numel, _) in enumerate(shape):
        sources = [Vector(torch.zeros(numel)) if parts is None else parts[place][1] for parts in updates]
        columns.append(_short(sources, numel, f"{seed}/{place}"))
    return torch.cat(columns, dim=1)


def row_of(values: torch.Tensor, spans: Sequence[tuple[int, int]], seed: str) -> torch.Tensor:
    """The same for one vector of all parameters, cut like the updates."""
    columns = [
        _short([Vector(values[start:stop])], stop - start, f"{seed}/{place}")
        for place, (start, stop) in enumerate(spans)
    ]
    return torch.cat(columns, dim=1)[0]


def _short(sources: Sequence[Source], numel: int, seed: str) -> torch.Tensor:
    if numel <= EXACT_CHUNKS * CHUNK:
        return torch.stack([decode_whole(source, numel) for source in sources])
    return sketches(sources, numel, torch.device("cpu"), seed)


def scores(
    rows: torch.Tensor, last: torch.Tensor | None = None, looking: Looking | None = None
) -> tuple[int, ...]:
    """How odd each row is. `last` are the rows of the seal before."""
    rows = rows.double()
    lengths = rows.norm(dim=1)
    void = ~(torch.isfinite(lengths) & (lengths > 0))
    rows = torch.where(void[:, None], 0.0, rows)
    unit = rows / lengths.where(~void, torch.ones_like(lengths))[:, None]
    odd = [
        _odd(lengths.where(~void, torch.ones_like(lengths)).log(), "length", void),
        _odd(_beside_others(unit), "direction", void),
        _odd(_nearest(unit, unit, itself=True), "likeness", void).clamp(min=0),
    ]
    if last is not None and last.shape[1:] == rows.shape[1:]:
        before = last.double()
        before = (before / before.norm(dim=1, keepdim=True).clamp(min=1e-300)).nan_to_num(nan=0.0)
        odd.append(_odd(_nearest(unit, before, itself=False), "likeness", void).clamp(min=0))
    # What is odd within the usual is noise, and must not drown the doubts, which are weak and always count.
    parts = [(part.abs() - _USUAL).clamp(min=0) for part in odd]
    if looking is not None:
        parts.append(doubts(rows, looking).clamp(min=0))
    total = torch.stack(parts).square().sum(dim=0).sqrt()
    return tuple(MOST_SCORE if void[i] else _milli(float(total[i])) for i in range(len(rows)))


def _beside_others(unit: torch.Tensor) -> torch.Tensor:
    """The cosine of each with the mean of the others."""
    others = unit.sum(dim=0, keepdim=True) - unit
    cosines: torch.Tensor = (unit * others).sum(dim=1) / others.norm(dim=1).clamp(min=1e-300)
    return cosines


def _nearest(unit: torch.Tensor, others: torch.Tensor, *, itself: bool) -> torch.Tensor:
    """The largest cosine of each with any of the others."""
    products = unit @ others.T
    if itself:
        products.fill_diagonal_(-1.0)
    return products.max(dim=1).values


def _odd(values: torch.Tensor, measure: str, void: torch.Tensor) -> torch.Tensor:
    """Deviations from the median of those that are updates."""
    sound = values[~void]
    if not len(sound):
        return torch.zeros_like(values)
    middle = sound.median()
    spread = 1.4826 * (sound - middle).abs().median()
    return (values - middle) / spread.clamp(min=_LEAST_SPREAD[measure])


def _milli(value: float) -> int:
    return MOST_SCORE if not math.isfinite(value) else min(MOST_SCORE, max(0, round(1000 * value)))
