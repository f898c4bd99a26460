"""Who leads: of several coordinators on one store, one at a time may write.

In flow candidates, each asking again before its lease runs out; out flows who leads, and who else is there. Invariant:
whoever takes the lead has taken it from everyone before: a store that has lost it refuses every write, so what a leader
read on taking over is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.base.errors import ShoalError
from shoal.base.logstore import LogStore


@dataclass(frozen=True, slots=True)
class Candidate:
    """A coordinator: one home, through all its restarts."""

    name: str
    """Its own, drawn once for each home."""
    address: str = ""
    """For control channels."""
    blobs: str = ""
    """Where its blobs are served."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How things are, by the store."""

    leads: bool
    leader: Candidate
    others: tuple[Candidate, ...]
    """Everybody else who asked lately, the leader first."""


class SharedStore(LogStore, Protocol):
    """A log store that several coordinators share."""

    def stand(self, candidate: Candidate, lease_s: float) -> Standing:
        """Take the lead if it is free, or keep it for another `lease_s`; say who is there either way. Raises SH-LEAD-01
        if it was this store's and somebody else has taken it since."""


def lead_lost(leader: str) -> ShoalError:
    return ShoalError(
        "SH-LEAD-01",
        f"another coordinator ({leader[:12]}) has taken over",
        "nothing is lost, and nodes go there by themselves; start this one again to stand by",
    )


def lead_lapsed(lease_s: float) -> ShoalError:
    return ShoalError(
        "SH-LEAD-01",
        f"the store took longer to answer than the lead is lent for ({lease_s:g} s)",
        "nothing is lost: the lead is asked for anew; if this comes often, look after the store's server",
    )
