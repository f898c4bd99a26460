"""The loop around a settlement: again and again, with patience, until the run is settled or it is told to stop.

In flow a settlement and a clock; out flow events in words. Invariant: whatever the chain does, the loop goes on; an
error that time may heal is told once for each new cause, and training hears nothing of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shoal.base.errors import ShoalError
from shoal.chain.settlement import Progress, Settlement

MOST_WAIT_S = 10.0
PASSING = ("SH-CHAIN-04", "SH-CHAIN-08", "SH-CHAIN-09", "SH-CHAIN-10")
"""What may be better when it is tried again: no RPC, an empty wallet, a job that is full, a refusal."""


def run_settlement(
    settlement: Settlement,
    *,
    every_s: float,
    until_done: bool,
    stop: threading.Event,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Progress | None:
    """Where it stood last. Raises what time does not heal, the wrong chain first of all."""
    checked, wait_s, told = False, every_s, ""
    progress: Progress | None = None
    while not stop.is_set():
        trouble: ShoalError | None = None
        try:
            if not checked:
                settlement.check(clock())
                checked = True
            before, progress = progress, settlement.step(clock())
            if before is None or before.settled != progress.settled:
                tell(f"epochs {progress.settled} of {progress.epochs} settled")
            trouble = progress.waiting
        except ShoalError as error:
            if error.code not in PASSING:
                raise
            trouble = error
        if trouble is not None and trouble.cause != told:
            tell(f"{trouble.code}: {trouble.cause} ({trouble.next_step})")
        told = trouble.cause if trouble else ""
        if until_done and progress is not None and progress.done and trouble is None:
            return progress
        wait_s = min(MOST_WAIT_S, 2 * wait_s) if trouble else every_s
        stop.wait(wait_s)
    return progress
