"""An opened update that touches some positions only.

In flow sorted positions and their opened values; out flow ranges. Invariant: adding touches nothing but what was sent,
and gives the bits of decoding and then adding: what was not sent decodes to -0.0, and `x + -0.0` is x for every x.
"""

from __future__ import annotations

import numpy as np
import torch

from shoal.codec.base import CHUNK
from shoal.codec.gaps import Positions
from shoal.codec.kept import KeptValues

_DENSEST = 0.25
"""Above this a dense codec takes fewer bytes, and positions more memory than the values."""


def check_density(density: float) -> float:
    """The share of values that a codec keeps. Raises ValueError."""
    if not 0 < density <= _DENSEST:
        raise ValueError(f"density must be above 0 and at most {_DENSEST}, not {density}")
    return density


class ScatteredSource:
    """Holds each position in two bytes, its place within a range of `CHUNK`. A position's chunk, for `values`,
    is the position shifted right by `shift`. Longer ranges are as good."""

    longest = 512 * CHUNK

    def __init__(self, positions: Positions, values: KeptValues, numel: int, shift: int) -> None:
        self._bounds = np.searchsorted(positions, np.arange(0, numel + CHUNK, CHUNK))
        self._places = positions.astype(np.uint16) & np.uint16(CHUNK - 1)
        self._values, self._numel, self._shift = values, numel, shift
        self._there: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        """By accelerator, all positions and values, uploaded once."""

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        places, values = self._read(start, stop, factor, out.device)
        out.fill_(-0.0).scatter_(0, places, values)

    def accumulate(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        places, values = self._read(start, stop, factor, out.device)
        out.scatter_add_(0, places, values)

    def sent(self, start: int, stop: int, out: torch.Tensor) -> None:
        places, _ = self._read(start, stop, 1.0, out.device)
        out.zero_().scatter_(0, places, 1.0)

    def _read(
        self, start: int, stop: int, factor: float, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The places within a range of what was kept of it, and the values times `factor`."""
        if device.type == "cpu":
            return self._read_here(start, stop, factor)
        if device not in self._there:
            places, values = self._read_here(0, self._numel, 1.0)
            self._there[device] = places.to(device), values.to(device)
        places, values = self._there[device]
        bounds = self._kept_in(start, stop)
        part = slice(bounds[0], bounds[-1])
        return places[part] - start, values[part] * factor

    def _read_here(self, start: int, stop: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        bounds = self._kept_in(start, stop)
        first, last = int(bounds[0]), int(bounds[-1])
        places = self._places[first:last].astype(np.int64)
        if len(bounds) > 2:
            places += np.repeat(np.arange(len(bounds) - 1) * CHUNK, np.diff(bounds))
        values = self._values.read(first, last, (places + start) >> self._shift, factor)
        return torch.from_numpy(places), torch.from_numpy(values)

    def _kept_in(self, start: int, stop: int) -> Positions:
        """How many were kept before each chunk of a range, and before its end."""
        bounds = self._bounds[start // CHUNK : -(-stop // CHUNK) + 1]
        if stop < self._numel and stop % CHUNK:
            last = self._places[bounds[-2] : bounds[-1]]
            bounds = np.append(bounds[:-1], bounds[-2] + np.searchsorted(last, stop % CHUNK))
        return bounds
