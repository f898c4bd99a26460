"""The mean direction at the mean length: updates at right angles to one another do not shrink by averaging."""

from __future__ import annotations

import math

from shoal.aggregate.base import LARGEST, Combine, Gathering
from shoal.aggregate.exact import norm_of, norms
from shoal.aggregate.mean import weighted_sum

_NEGLIGIBLE = 2.0**-100
"""An update shorter than the mean length by this factor has no direction: scaling it up could overflow."""


class DirectionMean:
    """Radial-directional averaging, as in Decoupled DiLoCo (arXiv 2604.21428): the weighted mean of the updates' unit
    vectors, rescaled to the weighted mean of their lengths. With it the outer rate need not be retuned as the fleet
    grows; with a mean, the updates of M nodes at right angles come out shorter by the root of M.

    Two things differ from the paper. It works on whole fragments, not on tensors, embeddings too; cut the
    model into more fragments to come nearer. And it never lengthens the mean direction by more than updates at right
    angles need, where the paper falls back to the mean: updates that cancel one another stay small.

    Prefer `mean` for few nodes whose updates agree. It is no defence: a long update raises the length of all."""

    reads: tuple[str, ...] = ()

    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        here = sum(update.weight for update in gathering.updates)
        weights = [update.weight / here for update in gathering.updates]
        lengths = norms(sources, gathering.numel, gathering.device)
        mean_length = min(math.fsum(w * length for w, length in zip(weights, lengths, strict=True)), LARGEST)
        # Each update brought to the mean length, so that only directions are averaged.
        evened = [
            w * mean_length / length if length > mean_length * _NEGLIGIBLE else 0.0
            for w, length in zip(weights, lengths, strict=True)
        ]
        length = norm_of(weighted_sum(sources, evened), gathering.numel, gathering.device)
        if not length:
            return weighted_sum(sources, evened)
        directed = [w for w, factor in zip(weights, evened, strict=True) if factor]
        at_right_angles = 1 / math.sqrt(math.fsum(w * w for w in directed))
        scale = min(mean_length / length, at_right_angles) * (here / gathering.whole)
        return weighted_sum(sources, [factor * scale for factor in evened])
