"""Which strategies masked groups can train by, and what a member makes of them.

In flow a strategy and the `masking:` section; out flows nothing, or why not, in words. Invariant: where groups are
allowed, all that the run needs of a group is the mean of its members' updates.
"""

from __future__ import annotations

from shoal.audit.spec import AuditSpec
from shoal.secagg.spec import MaskingSpec
from shoal.strategy.merge import Replace
from shoal.strategy.pieces import CodecPiece, Strategy, steps_outside


def unsound_masking(masking: MaskingSpec, strategy: Strategy, audit: AuditSpec) -> str:
    """Why members cannot be masked groups; "" if they can."""
    if why := masking.unsound():
        return why
    if audit.on:
        return "with audit.rate above 0: a masked update cannot be run again by others; set audit.rate to 0"
    if strategy.region is not None:
        return (
            "with strategy.region: a region's members fold each other's updates, so they see them; use a strategy "
            "without regions, and begin groups with `shoal group`"
        )
    if not isinstance(strategy.merge_rule(), Replace) or strategy.schedule.overlap:
        return (
            f"with merge {strategy.merge.kind!r} or overlap: members begin every round from the run's own state, and "
            "keep nothing of their own; use merge replace and overlap 0"
        )
    if strategy.schedule.order != "all":
        return "with order rotate: a group sums up whole updates; use order all"
    if steps_outside(strategy):
        return f"with outer {strategy.outer.kind!r}, which takes the real step: use an outer sgd or nesterov"
    if strategy.schedule.steps < masking.members:
        return (
            f"with schedule.steps {strategy.schedule.steps} for groups of {masking.members}: the steps are those of "
            "all of a group's members together, and each needs one; raise steps"
        )
    return ""


def for_member(strategy: Strategy) -> Strategy:
    """What a member trains by: its update is sent as it is, since a sum takes no codec."""
    return strategy.model_copy(update={"codec": CodecPiece(kind="none")})
