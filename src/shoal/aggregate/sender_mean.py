"""The mean over those who sent a value: for sparse updates, where most leave most coordinates out."""

from __future__ import annotations

import torch

from shoal.aggregate.base import Combine, Gathering, float32


class SenderMean:
    """Each coordinate is averaged, by weight, over the updates that sent it, and is zero where none did. A plain mean
    would shrink a value that one of eight sent to an eighth. Go back to `mean` with `error_feedback`, which sends
    later what was left out: counting it in full each time overshoots."""

    reads: tuple[str, ...] = ()

    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        shares = [float32(update.weight / gathering.whole) for update in gathering.updates]
        here = float32(sum(update.weight for update in gathering.updates) / gathering.whole)

        def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            senders = torch.zeros_like(out)
            out.zero_()
            for source, share in zip(sources, shares, strict=True):
                source.accumulate(start, stop, share, out, scratch)
                source.sent(start, stop, scratch)
                senders.add_(scratch.mul_(share))
            # Where nobody sent, the sum is zero too: divided by one it stays so.
            senders.add_(torch.eq(senders, 0.0, out=scratch))
            out.div_(senders).mul_(here)

        return combine
