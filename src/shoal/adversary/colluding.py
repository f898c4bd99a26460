"""Attackers that know the honest updates, and agree on what to send.

In flow all honest updates of a round; out flows one vector for all of them. They stay as near to the honest ones as
those are to one another, so that no rule can tell them apart by distance alone.
"""

from __future__ import annotations

from statistics import NormalDist

import torch

from shoal.adversary.base import Seen


class ALittleIsEnough:
    """The mean less so many standard deviations in every coordinate that a majority could still include the attackers
    (arXiv 1902.06156)."""

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        stacked = torch.stack(list(seen.others))
        away = _shift(seen.nodes, seen.attackers)
        return stacked.mean(dim=0) - away * stacked.std(dim=0, correction=0)


def _shift(nodes: int, attackers: int) -> float:
    """How many standard deviations: so many that, with the supporters needed for a majority, they are no outliers."""
    honest = nodes - attackers
    needed = nodes // 2 + 1 - attackers
    share = min(max((honest - needed) / honest, 0.5), 0.999)
    return NormalDist().inv_cdf(share)


class InnerProduct:
    """Inner-product manipulation: a part of the honest mean, backwards (arXiv 1903.03936)."""

    part = 0.5

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        return torch.stack(list(seen.others)).mean(dim=0) * -self.part


class Mimic:
    """All send what one honest node sends, always the same one, so that it counts for many (arXiv 2006.09365)."""

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        return seen.others[0]


class Collusion:
    """Against the honest mean, as far as an update can be without being further from any honest one than two honest
    ones are from one another (the min-max attack of Shejwalkar and Houmansadr, 2021)."""

    halvings = 20

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        stacked = torch.stack(list(seen.others))
        mean = stacked.mean(dim=0)
        widest = torch.cdist(stacked[None], stacked[None])[0].max()
        direction: torch.Tensor = -mean / mean.norm().clamp(min=1e-30)
        low, high = 0.0, 2 * float(widest + mean.norm())
        for _ in range(self.halvings):
            middle = (low + high) / 2
            fits = bool((stacked - (mean + direction * middle)).norm(dim=1).max() <= widest)
            low, high = (middle, high) if fits else (low, middle)
        return mean + direction * low
