"""Pushing an update: side by side, past those that hang, and no more than is needed."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId
from shoal.node.spreading import STAGGER_S, Spreading
from shoal.wire.signed import Signed
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork

BLOB = BlobId("7" * 64)
PEERS = [Peer(node=NodeId(name * 40), address=name) for name in "abcd"]
TAKES_S = {"a": 30.0, "b": 0.2, "c": 0.2, "d": 0.2}


class Pushes:
    """Implements `Pusher`: takes as long with each peer as the table says; the first gives no receipt."""

    def __init__(self, host: Host) -> None:
        self.began: list[tuple[str, float]] = []
        self._clock = host.clock

    async def push(self, blob: BlobId, peer: Peer) -> Signed | None:
        self.began.append((peer.address, self._clock.now()))
        await self._clock.sleep(TAKES_S[peer.address])
        return None if peer.address == "a" else Signed(peer.address.encode(), b"")


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop(1, event_budget=100_000)


def spreading(loop: SimLoop) -> tuple[Spreading, Pushes]:
    host = SimHost(loop, SimNetwork(loop), "here", 1, SimDisk(), node=NodeId("h" * 40), link=Link())
    pushes = Pushes(host)
    return Spreading(host, pushes, BLOB, 1000), pushes


def test_one_that_hangs_holds_up_nobody(loop: SimLoop) -> None:
    spread, pushes = spreading(loop)

    async def main() -> float:
        pushing = asyncio.ensure_future(spread.push_each(PEERS))
        await asyncio.sleep(0.01)
        began = loop.time()
        await spread.until(lambda: len(spread.receipts(lambda *_: True)) == 3, 60)
        took = loop.time() - began
        await pushing
        return took

    assert loop.run(main()) < 3 * STAGGER_S + 0.3
    times = [at for _, at in pushes.began]
    assert [name for name, _ in pushes.began] == ["a", "b", "c", "d"]
    assert all(later - sooner >= STAGGER_S - 1e-6 for sooner, later in itertools.pairwise(times))


def test_everyone_is_given_it_once_until_forgiven(loop: SimLoop) -> None:
    spread, pushes = spreading(loop)

    async def main() -> None:
        await spread.push_each(PEERS)
        await spread.push_each(random.Random(1).sample(PEERS, 4))
        assert len(pushes.began) == 4
        spread.forgive()
        await spread.push_each(PEERS)

    loop.run(main())
    assert [name for name, _ in pushes.began[4:]] == ["a"], "only who took nothing is asked again"


def test_waiting_ends_when_nothing_is_under_way(loop: SimLoop) -> None:
    spread, _ = spreading(loop)

    async def main() -> float:
        pushing = asyncio.ensure_future(spread.push(PEERS[1]))
        await asyncio.sleep(0.01)
        await spread.until(lambda: False, None)
        await pushing
        return loop.time()

    assert loop.run(main()) < 1
