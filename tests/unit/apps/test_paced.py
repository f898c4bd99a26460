"""A node in a lab takes as long as its device would."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from shoal.apps.paced import PacedHost
from shoal.lab.pace import Pacer, read_pace
from shoal.lab.report import PaceUse
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk


def test_training_is_waited_out_and_nothing_else_is(tmp_path: Path) -> None:
    async def visit() -> tuple[float, float]:
        async with PacedHost(Identity(b"k" * 32), FileDisk(tmp_path / "disk")) as host:
            host.pacer = Pacer(0.05, 0.5, tmp_path / "host.json")
            began = time.monotonic()
            assert await host.work(lambda: 7, seconds=0.1) == 7
            trained = time.monotonic()
            await host.work(lambda: None)
            return trained - began, host.pacer.step_s

    took_s, step_s = asyncio.run(visit())
    assert took_s >= 0.2 and step_s == 0.05
    assert read_pace(tmp_path) == PaceUse(paced_s=0.2, overrun_s=0.0)
