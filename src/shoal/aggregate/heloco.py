"""The mean, with late updates bent towards where the model has been going meanwhile."""

from __future__ import annotations

import torch

from shoal.aggregate.base import Combine, Gathering, float32
from shoal.aggregate.exact import BlockProducts, square_root
from shoal.aggregate.mean import weighted_sum
from shoal.codec.base import CHUNK

_NEGLIGIBLE = 2.0**-100
"""A momentum shorter than the update by this factor gives no direction: dividing by it could overflow."""


class HeLoCo:
    """The block-wise correction of HeLoCo (arXiv 2606.00271) for updates whose base is no longer the newest version.

    Each block of a late update is compared with the outer momentum. If their cosine is at least `aligned`, it stays.
    If it is negative, the part against the momentum is shrunk, by `shrink` and at most `shrink_most`. In between,
    the block is turned towards the momentum by `turn`, at the same length. All of it is scaled by a confidence,
    the block's length over (itself + `restraint` x the momentum's).

    Three things differ from the paper. Blocks are of fixed size, not tensors. Only late updates are corrected, and
    together, not one after another. And `restraint` is 0.3, not 3: momentum here is a sum, at 0.9 ten times as long
    as the paper's average. Retune it with the momentum; raise `aligned` if late updates still pull back.
    Needs an outer optimiser with momentum; in rounds where nobody is late it is the mean, bit for bit."""

    reads: tuple[str, ...] = ("momentum",)

    def __init__(
        self,
        aligned: float = 0.2,
        shrink: float = 0.5,
        shrink_most: float = 0.5,
        turn: float = 1.0,
        restraint: float = 0.3,
        block: int = 4096,
    ) -> None:
        for name, value in (("aligned", aligned), ("shrink_most", shrink_most)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value}")
        for name, value in (("shrink", shrink), ("turn", turn), ("restraint", restraint)):
            if not 0 <= value <= 1000:
                raise ValueError(f"{name} must be from 0 to 1000, not {value}")
        if not (1 <= block <= CHUNK) or CHUNK % block:
            raise ValueError(f"block must be a power of two up to {CHUNK}, not {block}")
        self._aligned, self._shrink, self._shrink_most = aligned, shrink, shrink_most
        self._turn, self._restraint, self._block = turn, restraint, block

    def begin(self, gathering: Gathering) -> Combine:
        updates, momentum = gathering.updates, gathering.slots.get("momentum")
        shares = [update.weight / gathering.whole for update in updates]
        if momentum is None or not any(update.age for update in updates):
            return weighted_sum([update.source for update in updates], shares)
        rounded = [float32(share) for share in shares]
        late = [number for number, update in enumerate(updates) if update.age]
        late_shares = torch.tensor([rounded[number] for number in late], dtype=torch.float64)[:, None]

        def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            here = momentum[start:stop]
            products = BlockProducts(stop - start, self._block, out.device)
            lengths, inner = [], []
            for number in late:
                updates[number].source.decode(start, stop, 1.0, scratch)
                lengths.append(products(scratch, scratch))
                inner.append(products(scratch, here))
            moved = square_root(products(here, here)).expand(len(late), -1)
            kept, pushed = self._correction(square_root(torch.stack(lengths)), moved, torch.stack(inner))
            factors = dict(zip(late, kept, strict=True))
            out.zero_()
            for number, update in enumerate(updates):
                if number not in factors:
                    update.source.accumulate(start, stop, rounded[number], out, scratch)
                    continue
                update.source.decode(start, stop, rounded[number], scratch)
                out.add_(self._times(scratch, factors[number]))
            # All are pushed along the same momentum: by block, the pushes are added first, in seal order.
            by_share = list(pushed * late_shares.to(out.device))
            for push in by_share[1:]:
                by_share[0].add_(push)
            out.add_(self._times(scratch.copy_(here), by_share[0]))

        return combine

    def _correction(
        self, length: torch.Tensor, moved: torch.Tensor, inner: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """By update and block, from the update's and the momentum's lengths and their inner product, how much of the
        update to keep and how much of the momentum to add to it."""
        comparable = (length > 0) & (moved > length * _NEGLIGIBLE)
        one, zero = torch.ones_like(length), torch.zeros_like(length)
        length, moved = torch.where(comparable, length, one), torch.where(comparable, moved, one)
        cosine = torch.where(comparable, inner / (length * moved), zero)
        confidence = length / (length + moved * self._restraint)
        shrunk = torch.clamp(-cosine * self._shrink * confidence, max=self._shrink_most)
        turned = torch.clamp((one - cosine) * self._turn * confidence, max=1.0)
        straight = one - turned
        along = torch.clamp(cosine, min=0.0)
        mixed = square_root(straight * straight + turned * turned + turned * straight * along * 2.0)
        against, between = cosine < 0, (cosine >= 0) & (cosine < self._aligned)
        kept = torch.where(comparable & between, straight / mixed, one)
        back = torch.where(against, -shrunk * cosine, torch.where(between, turned / mixed, zero))
        return kept, torch.where(comparable, back * (length / moved), zero)

    def _times(self, values: torch.Tensor, by_block: torch.Tensor) -> torch.Tensor:
        """The values, in place, each block times its factor."""
        factors = by_block.to(torch.float32)
        whole = values.numel() // self._block
        values[: whole * self._block].view(whole, self._block).mul_(factors[:whole, None])
        values[whole * self._block :].mul_(factors[-1])
        return values
