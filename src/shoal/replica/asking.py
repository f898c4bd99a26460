"""In what manner peers are asked for a blob: one after the other or all at once, and who is waited for.

In flow what the caller does if nobody gives it; out flows how long that takes to know. Invariant: whoever is asked has
at least one request's time to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.base.ids import NodeId


def everybody(_: NodeId) -> bool:
    return True


def nobody(_: NodeId) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    at_once: bool = False
    """All together from the beginning, for a little each; else only once the first ones prove silent."""
    waits_for: Callable[[NodeId], bool] = everybody
    """Who has several chances, each longer than the one before; others are left out when they are silent."""


PATIENTLY = Asking()
BRIEFLY = Asking(waits_for=nobody)
"""For those who ask again if need be, and want to know meanwhile."""
SEARCHING = Asking(at_once=True, waits_for=nobody)
"""For those who do ask again."""
