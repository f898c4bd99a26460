"""The recipe's `masking:` section: whether members are masked groups, and how large and careful those are.

In flows what a person wrote; out flows a checked, frozen value. Invariant: with `members` 0 there are no groups, and a
run is as if this package were not there.
"""

from __future__ import annotations

from pydantic import Field

from shoal.base.section import Section
from shoal.secagg.fixed import FixedPoint
from shoal.secagg.terms import LEAST_MEMBERS, MOST_MEMBERS


class MaskingSpec(Section):
    """Secure aggregation, see docs/secure-aggregation.md: the run's members are the hubs of groups (`shoal group`), and
    a hub is shown the sum of its members' updates only."""

    members: int = Field(default=0, ge=0, le=MOST_MEMBERS)
    """A group's round waits for this many members, 3 at least; 0 for no groups."""
    threshold: float = Field(default=0.66, ge=0.5, le=1.0)
    """More than this share of a round's members must answer to its end; the others may drop out. Fewer than twice this
    share, less one, may collude with a hub."""
    limit: float = Field(default=8.0, gt=0, le=1e6)
    """No value of an update may be larger, either way: it is cut to this, and sent in steps of about limit x members /
    2^31."""
    wait_s: float = Field(default=30.0, gt=0, le=1e6)
    """How long a member may take for each step of a round after its training."""

    @property
    def on(self) -> bool:
        return self.members > 0

    def threshold_of(self, members: int) -> int:
        """How many of so many must answer."""
        return min(members, int(self.threshold * members) + 1)

    def unsound(self) -> str:
        """Why no group can be like this; "" if it can."""
        if self.on and self.members < LEAST_MEMBERS:
            return (
                f"members {self.members}: with fewer than {LEAST_MEMBERS} each would know the other's update"
            )
        try:
            FixedPoint(self.limit, MOST_MEMBERS)
        except ValueError as error:
            return f"limit {self.limit:g}: {error}"
        return ""
