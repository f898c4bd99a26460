"""The line to a coordinator: how long a node tries before it was ever let in."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, RUN

from shoal.base.errors import ShoalError
from shoal.node.link import ControlLink
from shoal.node.session import HANDSHAKE_S, Invitation
from shoal.worlds.simulated.loop import SimLoop

from .test_session import CHALLENGE, Lines, Script

PATIENCE_S = 30.0
LONG_S = 20 * HANDSHAKE_S


class _Clock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Standby(Lines):
    """One coordinator is gone; the other takes greetings, and waits for votes."""

    clock, random = _Clock(), random.Random(1)

    async def connect(self, address: str, node: object) -> Script:
        if address == "gone":
            return await super().connect(address, COORDINATOR.node)
        return Script(CHALLENGE)


def _stay(length: int) -> None:
    invitation = Invitation(
        coordinator=COORDINATOR.node, addresses=("gone", "standby"), run=RUN, token="t", name="ann"
    )

    async def main() -> None:
        host: Any = _Standby(gone=None)
        link = ControlLink(host, NODES[0], invitation, lambda event: None, lambda addresses: None)
        async with asyncio.timeout(LONG_S):
            await link.stay_connected("", lambda: length, PATIENCE_S)

    SimLoop(1, event_budget=10_000).run(main())


def test_a_member_stays_at_a_coordinator_that_waits_for_its_vote() -> None:
    with pytest.raises(TimeoutError):
        _stay(length=7)


def test_a_newcomer_gives_up_and_is_told_that_somebody_answered() -> None:
    with pytest.raises(ShoalError, match="standby answers, but lets nobody in") as told:
        _stay(length=0)
    assert told.value.code == "SH-JOIN-05"
