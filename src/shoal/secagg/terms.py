"""What one round of a group is about: who, how many must answer, and how many numbers.

In flows what the hub proposes; out flows whether a member may take part. Invariant: everything that is said in a round
names the hash of its terms, so nothing of one round can be used in another.
"""

from __future__ import annotations

from typing import Annotated

import blake3
import msgspec

from shoal.base.ids import NodeId
from shoal.secagg.fixed import FixedPoint
from shoal.wire.identity import node_id

LEAST_MEMBERS, MOST_MEMBERS = 3, 128
MOST_NUMBERS = 1 << 32
Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: Annotated[str, msgspec.Meta(max_length=64)]
    """The run that the sum is for."""
    hub: Annotated[str, msgspec.Meta(max_length=40)]
    round: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    """The position of the plan that the work is of."""
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    """Which of the hub's rounds this is."""
    roster: Annotated[tuple[Key, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
    """The members' public keys, in the order of their ids."""
    threshold: int
    """How many of them must answer to the end; and how many would have to collude with the hub to see an update."""
    numel: Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBERS)]
    limit: float
    """How large a number may be, either way."""

    @property
    def session(self) -> bytes:
        return blake3.blake3(b"shoal/secagg/terms" + msgspec.msgpack.encode(self)).digest()

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(node_id(key) for key in self.roster)

    @property
    def fixed(self) -> FixedPoint:
        return FixedPoint(self.limit, len(self.roster))

    def public(self, node: str) -> bytes | None:
        """A member's key; None for somebody else."""
        return dict(zip(self.nodes, self.roster, strict=True)).get(NodeId(node))

    def places(self) -> dict[NodeId, int]:
        """Where each member's shares are taken, from 1 on."""
        return {node: number for number, node in enumerate(self.nodes, 1)}

    @property
    def colluders(self) -> int:
        """So many members may work with a lying hub and see no single update."""
        return min(self.threshold - 2, 2 * self.threshold - len(self.roster) - 1)


def usual_threshold(members: int) -> int:
    """More than two thirds: a third may drop out, and a third may collude."""
    return 2 * members // 3 + 1


def unsound(terms: Terms) -> str:
    """Why nobody should take part; "" if they may."""
    members = len(terms.roster)
    if members < LEAST_MEMBERS:
        return f"{members} members are too few: with {LEAST_MEMBERS - 1} each would know the other's update"
    if list(terms.nodes) != sorted(set(terms.nodes)):
        return "the roster is not in order, or names somebody twice"
    if not members < 2 * terms.threshold <= 2 * members:
        return (
            f"a threshold of {terms.threshold} for {members} members: it must be more than half of them, or a hub "
            "could have both of a member's secrets from two halves of the group"
        )
    try:
        terms.fixed  # noqa: B018 (it refuses what cannot be added up)
    except ValueError as error:
        return str(error)
    return ""
