"""Children that do not outlive their parent, however it ends.

In flows a process id; out flows what a child does before it becomes its program. Invariant: where the kernel can do it
(Linux) a child is killed when its parent is gone, even by SIGKILL; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with(parent: int) -> Callable[[], None]:
    """For `preexec_fn`: ask the kernel to die with the parent."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It died before we could ask.
            os._exit(1)

    return ask
