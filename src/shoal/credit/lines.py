"""What a log's entries are worth, line by line.

In flow facts about one entry; out flow immutable lines. Invariant: `micro` is what a line's other fields say:
`full_micro` times every factor, in their order, each rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.base.ids import NodeId

TRAIN, HOLD, AUDIT, COORDINATE, TAKEN = "train", "hold", "audit", "coordinate", "taken"
"""The last is no work: what a claim had earned before audits convicted it, and less than nothing."""
ROLES = (TRAIN, HOLD, AUDIT, COORDINATE, TAKEN)


class Factor(msgspec.Struct, frozen=True, array_like=True):
    """Why a line is less than its full price: a name, and the fraction that is left."""

    name: str
    part: int
    whole: int


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node earns by one entry of the log in one role."""

    position: int
    round: int
    node: NodeId
    role: str
    units: int
    """Samples or tokens that counted; updates held; states attested; updates put in order; claims convicted."""
    full_micro: int
    factors: tuple[Factor, ...] = ()
    micro: int


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a node's work and changed no line: why it was not paid, or was paid all the same."""

    position: int
    round: int
    node: NodeId
    kind: str
    words: str = ""


REFUSED, MISSED, UNDONE = "refused", "missed", "undone"


def earned(full_micro: int, factors: Iterable[Factor]) -> int:
    """The full price times every factor."""
    micro = full_micro
    for factor in factors:
        micro = micro * factor.part // factor.whole
    return micro


def make_line(
    *, position: int, round: int, node: NodeId, role: str, units: int, full: int, factors: Sequence[Factor]
) -> Line:
    return Line(
        position=position,
        round=round,
        node=node,
        role=role,
        units=units,
        full_micro=full,
        factors=tuple(factors),
        micro=earned(full, factors),
    )


def cut_to(lines: Sequence[Line], left_micro: int) -> tuple[Line, ...]:
    """The lines, or where they come to more than is left, each its part of that."""
    total = sum(line.micro for line in lines)
    if total <= left_micro:
        return tuple(lines)
    part = Factor("budget", left_micro, total)
    return tuple(
        msgspec.structs.replace(
            line, factors=(*line.factors, part), micro=earned(line.full_micro, (*line.factors, part))
        )
        for line in lines
    )


def split(micro: int, among: Sequence[NodeId]) -> list[tuple[NodeId, int]]:
    """Equal parts that add up: the first few have one more where it does not divide."""
    part, rest = divmod(micro, len(among)) if among else (0, 0)
    return [(node, part + (1 if place < rest else 0)) for place, node in enumerate(among)]
