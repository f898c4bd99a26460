"""The mean of updates clipped to a multiple of their median length: one large update cannot lead the others."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.aggregate.base import Combine, Gathering
from shoal.aggregate.exact import norms
from shoal.aggregate.mean import weighted_sum


class ClippedMean:
    """An update longer than `multiple` times the median length counts as if it had just that length.

    At 2, updates of one fleet at honest work are hardly ever clipped, and the result is the mean's, bit for bit; at 1,
    which others use, half of them are clipped every round and the mean comes out short. Retune up where
    members do very different amounts of work in a round, down where strangers may join. It bounds length only, not
    direction, and a seal of a single update has nothing to be compared with."""

    reads: tuple[str, ...] = ()

    def __init__(self, multiple: float = 2.0) -> None:
        if not 0.1 <= multiple <= 1000:
            raise ValueError(f"multiple must be from 0.1 to 1000, not {multiple}")
        self._multiple = multiple

    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        weights = [update.weight for update in gathering.updates]
        lengths = norms(sources, gathering.numel, gathering.device)
        bound = self._multiple * median(lengths, weights)
        shares = [
            weight / gathering.whole * (1.0 if length <= bound else bound / length)
            for length, weight in zip(lengths, weights, strict=True)
        ]
        return weighted_sum(sources, shares)


def median(lengths: Sequence[float], weights: Sequence[int]) -> float:
    """The least length that, with all below it, has half of the weight. Updates that change nothing have no say:
    else those who send them could clip the others to nothing."""
    counted = sorted((length, weight) for length, weight in zip(lengths, weights, strict=True) if length > 0)
    half, below = sum(weight for _, weight in counted), 0
    for length, weight in counted:
        below += 2 * weight
        if below >= half:
            return length
    return 0.0
