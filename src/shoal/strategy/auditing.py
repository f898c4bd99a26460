"""Which strategies can be audited by running claims again.

In flows a strategy; out flows nothing, or why not, in words. Invariant: where audits are allowed, everything that an
honest update depends on is in the log, but for the private state that its claim commits to.
"""

from __future__ import annotations

from shoal.strategy.merge import Replace
from shoal.strategy.pieces import Strategy


def unsound_audit(strategy: Strategy) -> str:
    """Why claims of this strategy cannot be run again; "" if they can."""
    if not isinstance(strategy.merge_rule(), Replace):
        return f"with merge {strategy.merge.kind!r}: local models do not begin from a state of the log"
    if strategy.seal_rule().most_stale:
        return f"with seal {strategy.seal.kind!r}: late work does not say which state it began from"
    if strategy.schedule.order != "all" or strategy.schedule.overlap:
        return "with fragments in turn or overlap: steps of one round go into the update of another"
    if strategy.region is not None:
        return "with regions: a hub's update is not trained from one assignment"
    return ""
