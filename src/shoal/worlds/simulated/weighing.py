"""What an object holds in memory, with everything that it alone leads to.

In flows an object; out flow bytes. Invariant: the simulated world itself (loop, network, hosts, disks), code and tasks
are never part of what somebody holds, and nothing is counted twice under one set of things seen.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from types import CodeType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType

from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import SimChannel, SimNetwork
from shoal.worlds.simulated.referee import Referee

_CODE = (type, ModuleType, FunctionType, CodeType, FrameType, GeneratorType, CoroutineType, TracebackType)
_WORLD = (SimLoop, SimNetwork, SimHost, SimDisk, SimChannel, Referee, asyncio.Task)


def weigh(root: object, seen: set[int]) -> int:
    """The bytes of everything that `root` leads to and that was not seen yet."""
    total, left = 0, [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, _CODE + _WORLD):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        left += gc.get_referents(one)
    return total
