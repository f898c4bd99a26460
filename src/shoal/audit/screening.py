"""How odd each update of a seal is, beside the others: scores that aim audits.

In flow the updates of a seal and of the one before, and the loss's slope on a few samples of each assignment; out flow
whole numbers. Invariant: a score accuses nobody; whoever is odd is looked at more often, and is cleared by it.

Four measures, each in standard deviations of the others' (by medians, so that a few liars do not hide one another):
the length; the direction beside the others' mean, both ways; the likeness to the nearest other update, of this seal or
the last; and whether it lowers the loss on its own samples more than the others' updates do, and more than on others'
samples. For the last, slopes are taken before the round, and products of slopes and updates are centred both ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from shoal.aggregate.sketch import EXACT_CHUNKS, Vector, sketches
from shoal.audit.selection import MOST_SCORE
from shoal.codec.base import CHUNK, Source, decode_whole

_LEAST_SPREAD = {"length": 0.05, "direction": 0.01, "likeness": 0.02}
"""No measure is taken to be steadier than this: a few nodes may be alike by chance."""
_USUAL = 2.0
_LEAST_FOR_EFFECT = 4
"""With fewer updates there is nothing to centre by."""
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


def slope_rows(slopes: Sequence[torch.Tensor], spans: Sequence[tuple[int, int]], seed: str) -> torch.Tensor:
    """The same for gradients, cut like the updates."""
    columns = []
    for place, (start, stop) in enumerate(spans):
        sources = [Vector(slope[start:stop]) for slope in slopes]
        columns.append(_short(sources, stop - start, f"{seed}/{place}"))
    return torch.cat(columns, dim=1)


def _short(sources: Sequence[Source], numel: int, seed: str) -> torch.Tensor:
    if numel <= EXACT_CHUNKS * CHUNK:
        return torch.stack([decode_whole(source, numel) for source in sources])
    return sketches(sources, numel, torch.device("cpu"), seed)


def scores(rows: torch.Tensor, earlier: torch.Tensor | None, slopes: torch.Tensor | None) -> tuple[int, ...]:
    """How odd each row is. `earlier` are the last seal's rows, `slopes` the gradients on each one's own samples."""
    rows = rows.double()
    lengths = rows.norm(dim=1)
    void = ~(torch.isfinite(lengths) & (lengths > 0))
    unit = torch.where(void[:, None], 0.0, rows / lengths.clamp(min=1e-300)[:, None])
    odd = [
        _odd(lengths.clamp(min=1e-300).log(), "length", void),
        _odd(_beside_others(unit), "direction", void),
        _odd(_nearest(unit, unit, itself=True), "likeness", void).clamp(min=0),
    ]
    if earlier is not None and earlier.shape[1:] == rows.shape[1:]:
        before = earlier.double()
        before = before / before.norm(dim=1, keepdim=True).clamp(min=1e-300)
        odd.append(_odd(_nearest(unit, before, itself=False), "likeness", void).clamp(min=0))
    # What is odd within the usual is noise, and must not drown the effect, which is weak and always counts.
    parts = [(part.abs() - _USUAL).clamp(min=0) for part in odd]
    if slopes is not None and len(rows) >= _LEAST_FOR_EFFECT:
        parts.append(_lacking(_effects(unit, slopes.double())))
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


def _effects(unit: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """By how much more than others' each update goes down its own samples' slope, in deviations of all the others'."""
    lengths = slopes.norm(dim=1, keepdim=True).clamp(min=1e-300)
    products = (slopes / lengths) @ unit.T
    centred = products - products.mean(dim=0) - products.mean(dim=1, keepdim=True) + products.mean()
    others = centred[~torch.eye(len(unit), dtype=torch.bool)]
    effects: torch.Tensor = centred.diagonal() / others.std().clamp(min=1e-300)
    return effects


def _lacking(effects: torch.Tensor) -> torch.Tensor:
    """By how many deviations an effect is less than is usual."""
    middle = effects.median()
    spread = 1.4826 * (effects - middle).abs().median()
    return ((middle - effects) / spread.clamp(min=1.0)).clamp(min=0)


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
