"""The cosines of short chunks: what a chain may choose from instead of the values themselves.

In flow values; out flow their DCT-II, chunk by chunk, and back from the few that were kept. Invariant: both ways are
exact everywhere. Forwards by products of whole numbers, which doubles add up exactly in any order; backwards by
multiplying each kept cosine and adding it, in the order of frequency.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shoal.codec.base import DenseSource, check_block, in_rows, slabs
from shoal.codec.cosines import BITS, dct_basis
from shoal.codec.gaps import Positions

_LONGEST = 256


class _Cosines(DenseSource):
    """`rows` says which cosines each chunk kept, `numbers` how much of them: one line for every rank in a chunk."""

    def __init__(self, basis: torch.Tensor, rows: torch.Tensor, numbers: torch.Tensor) -> None:
        self._basis, self._rows, self._numbers = basis, rows, numbers

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        length = self._basis.shape[0]
        here = slice(start // length, -(-stop // length))
        basis = self._basis.to(out.device)
        rows = self._rows[:, here].to(out.device, torch.int32)
        numbers = self._numbers[:, here].to(out.device) * factor
        total = basis.index_select(0, rows[0]).mul_(numbers[0][:, None])
        for rank in range(1, len(rows)):
            total.add_(basis.index_select(0, rows[rank]).mul_(numbers[rank][:, None]))
        out.copy_(total.view(-1)[: stop - start])


@dataclass(frozen=True, slots=True)
class CosineSpace:
    chunk: int
    keep: int

    def __post_init__(self) -> None:
        if check_block("chunk", self.chunk, least=8) > _LONGEST:
            raise ValueError(f"chunk must be at most {_LONGEST} for cosines, not {self.chunk}")

    def enter(self, flat: torch.Tensor) -> torch.Tensor:
        basis, found = dct_basis(self.chunk).to(flat.device), []
        for part in slabs(flat):
            rows = in_rows(part, self.chunk)
            peaks = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).abs_()[:, None]
            divisors = torch.where(peaks > 0, peaks, torch.ones_like(peaks))
            whole = (rows / divisors).mul_(2.0**BITS).round_().double()
            found.append((whole @ basis.t()).mul_(2.0 ** (-2 * BITS)).float().mul_(peaks))
        return torch.cat(found).view(-1)

    def leave(self, positions: Positions, numbers: torch.Tensor, numel: int) -> _Cosines | None:
        chunks = -(-numel // self.chunk)
        of_chunk = positions // self.chunk
        ranks = np.arange(len(positions)) - np.searchsorted(of_chunk, of_chunk)
        if len(ranks) and int(ranks.max()) >= self.keep:
            return None
        rows, table = np.zeros((self.keep, chunks), np.uint8), np.zeros((self.keep, chunks), np.float32)
        rows[ranks, of_chunk] = positions % self.chunk
        table[ranks, of_chunk] = numbers.numpy()
        basis = dct_basis(self.chunk).mul(2.0**-BITS).float()
        return _Cosines(basis, torch.from_numpy(rows), torch.from_numpy(table))
