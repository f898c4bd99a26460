"""The robust rule for runs among strangers, with settings that were measured: `docs/strangers.md`."""

from __future__ import annotations

from shoal.aggregate.krum import MultiKrum
from shoal.aggregate.tolerance import MAJORITY, Tolerance
from shoal.aggregate.voting import Before, Voted


def robust(f: float = 0.3) -> Voted:
    """Even lengths, one vote for those that say the same, nearest-neighbour mixing, then multi-Krum. `f` is the share
    of updates, or their number, that may be lies. It is a mean of those who are believed, and costs about two.

    After the mixing a majority is enough: multi-Krum needs two more only where it is alone."""
    before = Before(even=True, distinct=True, nnm=True)
    return Voted(MultiKrum("robust", MAJORITY), Tolerance(f), before)
