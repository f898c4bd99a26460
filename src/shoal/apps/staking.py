"""The organiser's own check of newcomers: a stake on a chain, a list elsewhere, a word from a friend.

In flows `module:function`; out flows the function. Invariant: it is asked of those alone who passed everything else,
away from the event loop, and whatever it does nobody gets in by its failing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.coordinator.doorkeeping import Stake


def find_stake(name: str) -> Stake | None:
    """The check of this name; None for "". It takes a run's id and a node's id, and returns "" to let the node in, or
    why not, in words. Raises SH-RUN-01."""
    if not name:
        return None
    module, colon, inside = name.partition(":")
    sys.path.append(str(Path.cwd()))  # Where a person's own check most likely lies.
    try:
        found = getattr(importlib.import_module(module), inside)
    except (ImportError, AttributeError, ValueError) as error:
        raise ShoalError("SH-RUN-01", f"--stake {name}: {error}", "name it as module:function") from error
    if not colon or not callable(found):
        raise ShoalError("SH-RUN-01", f"--stake {name} is no function", "name it as module:function")
    check: Stake = found
    return check
