"""An opened update of packed codes and a codebook for each block, and the sum of many such.

In flow opened updates; out flow ranges of their values, or of their sum. Invariant: a device with kernels reads the
codes as they came, in one pass for any number of updates, and writes the bits that decoding one after the other
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from shoal.codec.base import DenseSource, Source, longest_of
from shoal.codec.kernels import usable

if TYPE_CHECKING:
    from shoal.codec.kernels.launching import Uploaded


class PackedSource(DenseSource):
    """Codes of `bits` bits from the lowest bits of each byte up, and a codebook for every `block` values. Only
    `unpack` is left to write."""

    def __init__(self, books: torch.Tensor, packed: torch.Tensor, bits: int, block: int) -> None:
        self.books, self.packed, self.bits, self.block = books, packed, bits, block
        self._there: dict[torch.device, Uploaded] = {}

    def unpack(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        """`decode` by torch alone."""
        raise NotImplementedError

    def unpack_onto(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """`accumulate` by torch alone."""
        self.unpack(start, stop, factor, scratch)
        out.add_(scratch)

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        if _has_kernel(out):
            self._by_kernel(start, factor, out, onto=False)
        else:
            self.unpack(start, stop, factor, out)

    def accumulate(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        if _has_kernel(out):
            self._by_kernel(start, factor, out, onto=True)
        else:
            self.unpack_onto(start, stop, factor, out, scratch)

    def _by_kernel(self, start: int, factor: float, out: torch.Tensor, *, onto: bool) -> None:
        from shoal.codec.kernels.launching import add_dense, upload

        if out.device not in self._there:
            self._there[out.device] = upload([(self.books, self.packed)], out.device)
        factors = torch.full((1,), factor, device=out.device)
        add_dense(self._there[out.device], factors, start, out, onto=onto, bits=self.bits, block=self.block)


class WeightedSum:
    """Sources, each times its factor, a float32 number, added in order."""

    def __init__(self, sources: Sequence[Source], factors: Sequence[float]) -> None:
        self._sources, self._factors = sources, factors
        self.longest = longest_of(*sources)
        self._there: dict[torch.device, tuple[Uploaded, torch.Tensor]] = {}
        alike = [source for source in sources if isinstance(source, PackedSource)]
        forms = {(source.bits, source.block) for source in alike}
        self._alike = alike if len(alike) == len(sources) and len(forms) == 1 else []

    def __call__(self, start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
        """Write values [start, stop) of the sum; ranges are those of a source, `scratch` is as long."""
        if self._alike and _has_kernel(out):
            self._by_kernel(start, out)
            return
        self._sources[0].decode(start, stop, self._factors[0], out)
        for source, factor in zip(self._sources[1:], self._factors[1:], strict=True):
            source.accumulate(start, stop, factor, out, scratch)

    def _by_kernel(self, start: int, out: torch.Tensor) -> None:
        from shoal.codec.kernels.launching import add_dense, upload

        first = self._alike[0]
        if out.device not in self._there:
            pairs = [(source.books, source.packed) for source in self._alike]
            factors = torch.tensor(self._factors, dtype=torch.float32).to(out.device)
            self._there[out.device] = upload(pairs, out.device), factors
        uploaded, factors = self._there[out.device]
        add_dense(uploaded, factors, start, out, onto=False, bits=first.bits, block=first.block)


def _has_kernel(out: torch.Tensor) -> bool:
    return usable(out.device) and out.is_contiguous()
