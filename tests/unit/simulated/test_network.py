import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.base.errors import ChannelClosed
from shoal.base.host import Peer, Refused
from shoal.base.ids import NodeId
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import BUFFER_S, HostDied, Link, SimNetwork

A, B = NodeId("a" * 40), NodeId("b" * 40)
STEADY = Link(latency_s=0.1, jitter_s=0.0, up_bytes_s=1000.0, down_bytes_s=1e9)


class Echo:
    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        return (path.encode() * 1000)[start:stop] if path != "none" else None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if path == "no":
            raise Refused("not wanted")
        return sender.encode() + body


class Town:
    """Two hosts, a and b; b listens and offers."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed, event_budget=50_000)
        self.network = SimNetwork(self.loop)
        self.a = self.host("a", A)
        self.b = self.host("b", B)
        self.b.resources = Echo()
        self.received: list[bytes] = []
        self.b.on_channel = self._serve

    def host(self, name: str, node: NodeId, **more: Any) -> SimHost:
        return SimHost(self.loop, self.network, name, 1, SimDisk(), node=node, link=STEADY, **more)

    async def _serve(self, channel: Any) -> None:
        try:
            while True:
                self.received.append(await channel.recv())
        except ChannelClosed:
            self.received.append(b"closed")

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            return await work()

        return self.loop.run(main())


PEER = Peer(node=B, address="b")


def test_frames_arrive_in_order_after_latency_and_transfer() -> None:
    town = Town()

    async def work() -> None:
        channel = await town.a.connect("b", B)

        async def send_all() -> None:
            for number in range(5):
                await channel.send(b"%d" % number * 100)

        sending = asyncio.ensure_future(send_all())
        await asyncio.sleep(0.2 + 0.1 - 0.001)
        assert town.received == []
        await asyncio.sleep(0.01)
        assert [frame[:1] for frame in town.received] == [b"0"], "the line carries one after another"
        await asyncio.sleep(0.4)
        await sending
        assert [frame[:1] for frame in town.received] == [b"0", b"1", b"2", b"3", b"4"]

    town.run(work)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_reordered_unless_the_network_reorders(seed: int) -> None:
    """Empty frames take no time on the line: all would arrive at one moment."""
    town = Town(seed)
    sizes = [0, 0, 3, 0, 0, 1, 0, 0, 0, 2]

    async def work() -> None:
        channel = await town.a.connect("b", B)
        for size in sizes:
            await channel.send(b"x" * size)
        await channel.close()
        await asyncio.sleep(5)

    town.run(work)
    assert [len(frame) for frame in town.received[:-1]] == sizes and town.received[-1] == b"closed"


@pytest.mark.parametrize("seed", range(20))
def test_a_goodbye_arrives_before_the_close_that_follows_it(seed: int) -> None:
    town = Town(seed)
    town.a.link = Link(latency_s=0.1, jitter_s=0.5, up_bytes_s=1000.0, down_bytes_s=1e9)

    async def work() -> None:
        channel = await town.a.connect("b", B)
        await channel.send(b"a long goodbye " * 50)
        await channel.close()
        await asyncio.sleep(5)

    town.run(work)
    assert town.received == [b"a long goodbye " * 50, b"closed"]


def test_transfers_share_a_line() -> None:
    town = Town()
    other = town.host("c", NodeId("c" * 40))

    async def timed(host: SimHost, path: str, size: int) -> float:
        began = town.loop.time()
        assert len(await host.get(PEER, path, 0, size, timeout_s=60)) == size
        return town.loop.time() - began

    async def work() -> None:
        alone = await timed(town.a, "path", 400)
        assert alone == pytest.approx(0.4 + 0.4 + 0.2, abs=0.01), "there and back, the request, the answer"
        took = sorted(await asyncio.gather(timed(town.a, "path", 400), timed(other, "path", 400)))
        assert took == pytest.approx([1.0, 1.4], abs=0.01), "b's uplink carries one, then the other"
        assert await timed(town.a, "path", 400) == pytest.approx(alone, abs=0.01), "and is free again"

    town.run(work)


def test_a_busy_receiver_does_not_hold_up_its_senders_others() -> None:
    town = Town()
    slow = town.host("slow", A)
    slow.link = Link(latency_s=0.1, jitter_s=0.0, up_bytes_s=1e9, down_bytes_s=10.0)
    town.b.link = Link(latency_s=0.1, jitter_s=0.0, up_bytes_s=1e6, down_bytes_s=1e9)

    async def work() -> None:
        waits = asyncio.ensure_future(slow.get(PEER, "path", 0, 400, timeout_s=60))
        await asyncio.sleep(0.5)
        began = town.loop.time()
        await town.a.get(PEER, "path", 0, 400, timeout_s=60)
        assert town.loop.time() - began < 1 and not waits.done()
        assert len(await waits) == 400

    town.run(work)


def test_whoever_floods_a_channel_waits_for_the_line() -> None:
    """Or one channel's frames would keep every other's waiting without end."""
    town = Town()

    async def work() -> None:
        channel, other = await town.a.connect("b", B), await town.a.connect("b", B)
        began = town.loop.time()
        for _ in range(20):
            await channel.send(b"x" * 100)
        assert town.loop.time() - began == pytest.approx(20 * 0.1 - BUFFER_S, abs=0.01)
        await other.send(b"mine")
        await asyncio.sleep(0.2 + BUFFER_S + 0.02)
        assert town.received[-1] == b"mine"

    town.run(work)


def test_a_transfer_that_takes_longer_than_its_timeout_fails() -> None:
    town = Town()

    async def work() -> None:
        began = town.loop.time()
        with pytest.raises(ChannelClosed, match="timed out"):
            await town.a.put(PEER, "yes", b"x" * 5000, timeout_s=2)
        assert town.loop.time() - began == pytest.approx(2, abs=0.01)

    town.run(work)


def test_requests() -> None:
    town = Town()

    async def work() -> None:
        assert await town.a.get(PEER, "path", 2, 6, timeout_s=5) == b"thpa"
        assert await town.a.put(PEER, "yes", b"!", timeout_s=5) == A.encode() + b"!"
        with pytest.raises(Refused, match="not wanted"):
            await town.a.put(PEER, "no", b"!", timeout_s=5)
        for peer, path in (
            (PEER, "none"),
            (Peer(node=A, address="b"), "x"),
            (Peer(node=B, address="zzz"), "x"),
        ):
            with pytest.raises(ChannelClosed):
                await town.a.get(peer, path, 0, 1, timeout_s=5)

    town.run(work)


def test_only_the_node_that_was_meant_answers() -> None:
    town = Town()

    async def work() -> None:
        for address, node in (("b", A), ("nobody", B), ("a", A)):
            with pytest.raises(ChannelClosed):
                await town.a.connect(address, node)

    town.run(work)


def test_a_cut_is_one_way() -> None:
    town = Town()

    async def work() -> None:
        channel = await town.a.connect("b", B)
        town.network.faults.cut.add(("a", "b"))
        await channel.send(b"lost")
        await asyncio.sleep(3)
        assert town.received == []
        with pytest.raises(ChannelClosed):
            await town.a.get(PEER, "path", 0, 1, timeout_s=1)
        town.network.faults.cut = {("b", "a")}
        await channel.send(b"heard")
        await asyncio.sleep(3)
        assert town.received == [b"heard"]
        with pytest.raises(ChannelClosed):
            await town.a.get(PEER, "path", 0, 1, timeout_s=1)

    town.run(work)


def test_faults_happen_and_are_drawn_from_the_seed() -> None:
    def received(seed: int) -> list[bytes]:
        town = Town(seed)

        async def work() -> None:
            channel = await town.a.connect("b", B)
            faults = town.network.faults
            faults.loss, faults.duplicate, faults.reorder = 0.2, 0.2, 0.5
            town.a.link.jitter_s = 0.5
            for number in range(40):
                await channel.send(b"%d" % number)
            await asyncio.sleep(10)

        try:
            town.run(work)
        finally:
            STEADY.jitter_s = 0.0
        return town.received

    one = received(3)
    assert one == received(3) and one != received(4)
    numbers = [int(frame) for frame in one]
    assert len(set(numbers)) < 40 and len(numbers) > len(set(numbers)) and numbers != sorted(numbers)


def test_a_corrupted_range_is_other_bytes() -> None:
    town = Town()
    town.network.faults.corrupt = 1.0

    async def work() -> bytes:
        return await town.a.get(PEER, "path", 0, 4, timeout_s=5)

    assert town.run(work) != b"path"


def test_when_a_host_dies_its_connections_break_and_its_peers_hear() -> None:
    town = Town()
    heard = []

    async def work() -> None:
        channel = await town.a.connect("b", B)
        town.b.die()
        try:
            await channel.recv()
        except ChannelClosed:
            heard.append(town.loop.time())
        with pytest.raises(ChannelClosed):
            await channel.send(b"x")
        for request in (town.a.get(PEER, "path", 0, 1, timeout_s=1), town.a.connect("b", B)):
            with pytest.raises(ChannelClosed):
                await request

    town.run(work)
    assert len(heard) == 1


def test_closing_is_heard_on_the_other_side() -> None:
    town = Town()

    async def work() -> None:
        channel = await town.a.connect("b", B)
        await channel.send(b"last words")
        await channel.close()
        await asyncio.sleep(2)

    town.run(work)
    assert town.received[-1] == b"closed"


def test_a_host_that_hangs_costs_the_timeout() -> None:
    town = Town()

    async def work() -> None:
        town.b.paused = True
        began = town.loop.time()
        with pytest.raises(ChannelClosed, match="timed out"):
            await town.a.get(PEER, "path", 0, 1, timeout_s=7)
        assert town.loop.time() - began >= 7

    town.run(work)


def test_a_point_can_be_death() -> None:
    town = Town()
    town.b.on_point = lambda point: point == "the end"
    town.b.disk.write("f", b"data")
    town.b.reached("not yet")
    with pytest.raises(HostDied):
        town.b.reached("the end")
    assert not town.b.alive
    with pytest.raises(HostDied):
        town.b.reached("not yet")


def test_clocks_may_be_wrong() -> None:
    town = Town()
    fast = town.host("fast", A, rate=2.0, skew_s=100.0)

    async def work() -> None:
        before, wall = fast.clock.now(), fast.clock.wall_ms()
        began = town.loop.time()
        await fast.clock.sleep(10)
        assert town.loop.time() - began == pytest.approx(5) and fast.clock.now() - before == pytest.approx(10)
        assert fast.clock.wall_ms() - wall == pytest.approx(10_000, abs=1)
        assert fast.clock.wall_ms() - town.a.clock.wall_ms() == pytest.approx(105_000, abs=1)

    town.run(work)


def test_work_is_charged_by_speed_and_a_host_without_inbound_has_no_address() -> None:
    town = Town()
    slow = town.host("slow", A, speed=0.5, inbound=False)

    async def work() -> None:
        began = town.loop.time()
        assert await slow.work(lambda: 42, seconds=3) == 42
        assert town.loop.time() - began == pytest.approx(6, abs=0.01)
        assert await slow.offer(Echo()) == "" and await town.b.offer(Echo()) == "b"

    town.run(work)
