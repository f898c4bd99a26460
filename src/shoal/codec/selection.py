"""Which values are the largest: exactly so many of each row, by magnitude, equal ones by the lowest index.

In flow rows of values on any device; out flow positions and values in the CPU's memory. Invariant: the choice is a
function of the values alone. Magnitudes are compared as whole numbers (a float's bits without its sign rise with
it), and the guesses that save a full sort decide only what is looked at, never what is chosen.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from shoal.codec.base import slabs
from shoal.codec.gaps import Positions

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_MAGNITUDE = 0x7FFFFFFF
_SAMPLE, _STRIDE = 512, 256
"""Guesses are made from so many values of a row, and from one in so many of a long row."""


def largest(flat: torch.Tensor, width: int, keep: int) -> tuple[Positions, Floats]:
    """The `keep` largest values of each row of `width`, in the order of their positions. Zeros are not kept, so
    that a row may give fewer. `flat` is float32, and one row or whole rows of a power of two."""
    sample = _sample(flat, width)
    floors = np.maximum(_near_cut(sample, width, keep, above=-1), 1)
    positions, values = _at_least(flat, floors, width)
    numbers = _numbers(positions, width, len(floors))
    if (floors[numbers < keep] > 1).any():  # the guess was too high there: look at whole rows
        floors[numbers < keep] = 1
        positions, values = _at_least(flat, floors, width)
        numbers = _numbers(positions, width, len(floors))
    if int(numbers.max()) <= keep:
        return positions, values
    magnitudes = values.view(np.int32) & _MAGNITUDE
    if len(floors) == 1:
        kept = _trim_row(magnitudes, keep, ceiling=int(_near_cut(sample, width, keep, above=1)[0]))
    else:
        kept = _trim_rows(magnitudes, numbers, keep)
    return positions.compress(kept), values.compress(kept)


def _numbers(positions: Positions, width: int, rows: int) -> Positions:
    """How many of the positions lie in each row."""
    return np.diff(np.searchsorted(positions, np.arange(rows + 1) * width))


def _sample(flat: torch.Tensor, width: int) -> Bits:
    """The magnitudes of some of each row's values."""
    rows = flat.view(-1, width)[:, :: min(max(width // _SAMPLE, 1), _STRIDE)]
    return rows.contiguous().view(torch.int32).cpu().numpy() & _MAGNITUDE


def _near_cut(sample: Bits, width: int, keep: int, above: int) -> Bits:
    """For each row a magnitude that most likely lies above (or, for -1, below) that of its last kept value."""
    expected = keep * sample.shape[1] / width
    rank = math.ceil(expected - above * 4 * (math.sqrt(expected) + 1))
    if 0 < rank <= sample.shape[1]:
        cut: Bits = np.partition(sample, -rank, axis=1)[:, -rank]
        return cut
    return np.full(len(sample), _MAGNITUDE if above > 0 else 0, np.int32)


def _at_least(flat: torch.Tensor, floors: Bits, width: int) -> tuple[Positions, Floats]:
    """Positions and values of all that reach their row's floor. A slab is whole rows, or lies within one."""
    parts = list(slabs(flat))
    scratch = torch.empty_like(parts[0], dtype=torch.int32)
    found, start = [], 0
    for part in parts:
        stop = start + part.numel()
        magnitudes = scratch[: part.numel()]
        torch.bitwise_and(part.view(torch.int32), _MAGNITUDE, out=magnitudes)
        places = _reaching(magnitudes, floors[start // width : -(-stop // width)])
        found.append((places.cpu().numpy() + start, part.index_select(0, places).cpu().numpy()))
        start = stop
    return np.concatenate([places for places, _ in found]), np.concatenate([values for _, values in found])


def _reaching(magnitudes: torch.Tensor, floors: Bits) -> torch.Tensor:
    """Where magnitudes reach their row's floor. On a CPU numpy says so in half of torch's time."""
    if magnitudes.device.type == "cpu":
        reach = magnitudes.numpy().reshape(len(floors), -1) >= floors[:, None]
        return torch.from_numpy(np.flatnonzero(reach))
    floors_there = torch.from_numpy(floors).to(magnitudes.device)
    return (magnitudes.view(len(floors), -1) >= floors_there[:, None]).view(-1).nonzero().view(-1)


def _trim_row(magnitudes: Bits, keep: int, ceiling: int) -> Flags:
    """Which candidates are the `keep` largest. Those above `ceiling`, a guess, need not be sorted."""
    band = magnitudes[magnitudes <= ceiling]
    open_places = keep - (len(magnitudes) - len(band))
    if open_places <= 0:
        band, open_places = magnitudes, keep
    cut = np.partition(band, -open_places)[-open_places]
    kept: Flags = magnitudes > cut
    equal = np.flatnonzero(magnitudes == cut)
    kept[equal[: keep - np.count_nonzero(kept)]] = True
    return kept


def _trim_rows(magnitudes: Bits, numbers: Positions, keep: int) -> Flags:
    """Which candidates are among the `keep` largest of their row; there are `numbers` of them in each."""
    table = np.zeros((len(numbers), int(numbers.max())), np.int32)
    table[np.arange(table.shape[1]) < numbers[:, None]] = magnitudes
    cut = np.partition(table, -keep, axis=1)[:, -keep]
    every_cut = np.repeat(cut, numbers)
    kept: Flags = magnitudes > every_cut
    # Of those that are just as large as the cut, the first ones fill what room is left in their row.
    room = keep - np.count_nonzero(table > cut[:, None], axis=1)
    equal = np.flatnonzero(magnitudes == every_cut)
    rows = np.searchsorted(np.cumsum(numbers), equal, side="right")
    order = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept[equal[order < room[rows]]] = True
    return kept
