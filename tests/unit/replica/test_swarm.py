"""Fetching and pushing under the simulated network, with peers that lie, crawl or say nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from shoal.base.host import Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.asking import BRIEFLY, PATIENTLY, SEARCHING, Asking
from shoal.replica.blobs import CHUNK_BYTES, BlobStore, chunk_list
from shoal.replica.serving import PutReply, ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.replica.transfer import LITTLE_BYTES, REMEMBER_S, TransferReport
from shoal.runlog.entries import Receipt
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, open_signed
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork

RUN = RunId("1" * 32)
BIG = random.Random(5).randbytes(3 * CHUNK_BYTES + 11)
SMALL = b"a small update"


class Liar:
    """Serves a blob's chunk list as it is, and its chunks bent."""

    def __init__(self, honest: ResourcesByRun, *, list_too: bool = False) -> None:
        self.honest, self.list_too = honest, list_too

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        data = self.honest.get(path, start, stop)
        if data is None or (path.endswith("/chunks") and not self.list_too):
            return data
        return bytes(byte ^ 1 for byte in data)

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        return b"\xc1 garbage"


class Hosts:
    """A few machines on one network; the first is the one that fetches."""

    def __init__(self, count: int) -> None:
        self.loop = SimLoop(7, event_budget=100_000)
        self.network = SimNetwork(self.loop)
        self.identities = [Identity(f"{i}".encode().ljust(32, b".")) for i in range(count)]
        self.members = {identity.node for identity in self.identities}
        self.hosts = [
            SimHost(self.loop, self.network, f"h{i}", 1, SimDisk(), node=identity.node, link=Link())
            for i, identity in enumerate(self.identities)
        ]
        self.stores = [BlobStore(host.disk, host.reached) for host in self.hosts]
        self.offered = []
        for host, identity, store in zip(self.hosts, self.identities, self.stores, strict=True):
            by_run = ResourcesByRun()
            by_run.runs[RUN] = RunResources(
                run=RUN,
                identity=identity,
                blobs=store,
                read_entry=lambda position: None,
                is_member=self.members.__contains__,
                evidence=Evidence(run=RUN, coordinator=lambda: (), keep=lambda _: None),
                quota_bytes=1 << 40,
            )
            host.resources = by_run
            self.offered.append(by_run)
        self.swarm = Swarm(self.hosts[0], self.stores[0], RUN, timeout_s=5)

    def peers(self, *which: int) -> list[Peer]:
        return [Peer(node=self.hosts[i].node, address=self.hosts[i].name) for i in which]

    def fetch(
        self,
        data: bytes,
        which: list[int],
        *,
        size: int | None = None,
        max_bytes: int | None = None,
        asking: Asking = PATIENTLY,
    ) -> TransferReport | None:
        """Fetch `data`'s blob; afterwards no task of it is left."""

        async def main() -> TransferReport | None:
            blob = chunk_list(data).blob
            peers = self.peers(*which)
            report = await self.swarm.fetch(blob, size, peers, max_bytes=max_bytes, asking=asking)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return report

        return self.loop.run(main())

    async def fetch_again(self, data: bytes, which: list[int]) -> None:
        """As a node does that must have it: briefly, and again until it is here."""
        blob, asking = chunk_list(data).blob, BRIEFLY
        while await self.swarm.fetch(blob, len(data), self.peers(*which), asking=asking) is None:
            asking = SEARCHING
            await asyncio.sleep(1.0)

    def run(self, work: Callable[[], Awaitable[object]]) -> object:
        async def main() -> object:
            return await work()

        return self.loop.run(main())


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize("size_known", [True, False])
def test_a_blob_comes_from_several_peers(data: bytes, size_known: bool) -> None:
    hosts = Hosts(4)
    for store in hosts.stores[1:]:
        blob = store.put(data)
    size = len(data) if size_known else None
    report = hosts.run(lambda: hosts.swarm.fetch(blob, size, hosts.peers(1, 2, 3)))
    assert hosts.stores[0].get(blob) == data
    assert sum(report.from_peers.values()) == len(data) and not report.wrong  # type: ignore[attr-defined]
    assert hosts.hosts[3].node not in report.from_peers, "the last is only asked last"  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
@pytest.mark.parametrize("list_too", [False, True])
def test_a_wrong_chunk_costs_its_sender_not_the_fetch(data: bytes, list_too: bool) -> None:
    hosts = Hosts(4)
    for store in hosts.stores[1:]:
        blob = store.put(data)
    hosts.hosts[1].resources = Liar(hosts.offered[1], list_too=list_too)
    report = hosts.run(lambda: hosts.swarm.fetch(blob, len(data), hosts.peers(1, 2, 3)))
    assert hosts.stores[0].get(blob) == data
    assert list(report.wrong) == [hosts.hosts[1].node]  # type: ignore[attr-defined]


class Log:
    """Says which ranges were asked for; bends those that contain a given place."""

    def __init__(self, honest: ResourcesByRun, bent_at: int | None = None) -> None:
        self.honest, self.bent_at = honest, bent_at
        self.asked: list[tuple[int, int]] = []

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        data = self.honest.get(path, start, stop)
        if data is None or path.endswith("/chunks"):
            return data
        self.asked.append((start, start + len(data)))
        if self.bent_at is None or not start <= self.bent_at < start + len(data):
            return data
        place = self.bent_at - start
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        raise NotImplementedError


def test_a_fast_peer_is_asked_for_many_chunks_at_once() -> None:
    hosts, data = Hosts(2), random.Random(6).randbytes(60 * CHUNK_BYTES + 5)
    for host in hosts.hosts:
        host.link = Link(up_bytes_s=1e9, down_bytes_s=1e9, latency_s=1e-4)
    blob = hosts.stores[1].put(data)
    hosts.hosts[1].resources = log = Log(hosts.offered[1])
    report = hosts.fetch(data, [1])
    assert hosts.stores[0].get(blob) == data
    assert report is not None and report.from_peers == {hosts.hosts[1].node: len(data)}
    assert sum(stop - start for start, stop in log.asked) == len(data), "nothing was asked for twice"
    assert len(log.asked) < 40 and max(stop - start for start, stop in log.asked) > 4 * CHUNK_BYTES


def test_what_came_before_a_wrong_chunk_is_kept() -> None:
    hosts, data = Hosts(3), random.Random(7).randbytes(60 * CHUNK_BYTES)
    for host in hosts.hosts:
        host.link = Link(up_bytes_s=1e9, down_bytes_s=1e9, latency_s=1e-4)
    blob = hosts.stores[1].put(data)
    hosts.stores[2].put(data)
    hosts.hosts[1].resources = Log(hosts.offered[1], bent_at=30 * CHUNK_BYTES)
    hosts.hosts[2].resources = honest = Log(hosts.offered[2])
    report = hosts.fetch(data, [1, 2])
    assert hosts.stores[0].get(blob) == data
    assert report is not None and list(report.wrong) == [hosts.hosts[1].node]
    assert report.from_peers[hosts.hosts[1].node] > 0
    assert sum(report.from_peers.values()) == len(data)
    assert sum(stop - start for start, stop in honest.asked) < len(data)


def test_the_last_resort_is_enough() -> None:
    hosts = Hosts(3)
    blob = hosts.stores[2].put(BIG)
    hosts.hosts[1].alive = False
    hosts.run(lambda: hosts.swarm.fetch(blob, len(BIG), hosts.peers(1, 2)))
    assert hosts.stores[0].get(blob) == BIG


def test_nobody_has_it() -> None:
    hosts = Hosts(3)
    for data in (SMALL, BIG):
        assert hosts.stores[0].has(chunk_list(data).blob) is False

    async def both() -> list[object]:
        return [
            await hosts.swarm.fetch(chunk_list(data).blob, len(data), hosts.peers(1, 2))
            for data in (SMALL, BIG)
        ]

    assert hosts.run(both) == [None, None]


def test_what_arrived_is_not_fetched_twice() -> None:
    hosts = Hosts(3)
    blob = hosts.stores[1].put(BIG)
    chunks = chunk_list(BIG)
    hosts.stores[0].begin(chunks)
    for index in (0, 2):
        hosts.stores[0].add(blob, index, BIG[slice(*chunks.span(index))])
    report = hosts.run(lambda: hosts.swarm.fetch(blob, len(BIG), hosts.peers(1, 2)))
    assert sum(report.from_peers.values()) == CHUNK_BYTES + 11  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_a_push_earns_a_receipt(data: bytes) -> None:
    hosts = Hosts(2)
    blob = hosts.stores[0].put(data)
    receipt = hosts.run(lambda: hosts.swarm.push(blob, hosts.peers(1)[0]))
    assert receipt is not None and hosts.stores[1].get(blob) == data


def test_a_push_that_is_refused_or_answered_with_garbage_is_no_receipt() -> None:
    hosts = Hosts(3)
    blob = hosts.stores[0].put(SMALL)
    hosts.hosts[1].resources = Liar(hosts.offered[1])
    hosts.members.discard(hosts.identities[0].node)

    async def pushes() -> list[object]:
        missing = await hosts.swarm.push(BlobId("0" * 64), hosts.peers(2)[0])
        return [missing, *[await hosts.swarm.push(blob, peer) for peer in hosts.peers(1, 2)]]

    assert hosts.run(pushes) == [None, None, None]


class Greedy:
    """Asks for chunks that it has no right to, for ever."""

    def __init__(self, missing: tuple[int, ...]) -> None:
        self.missing, self.puts = missing, 0

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        return None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        self.puts += 1
        return msgspec.msgpack.encode(PutReply(self.missing))


@pytest.mark.parametrize("missing", [(0, 0), (0, 1, 2, 3, 3), (-1,), (4,), (1 << 60,), (0,) * 100_000])
def test_a_seeder_cannot_ask_for_more_than_there_is(missing: tuple[int, ...]) -> None:
    hosts = Hosts(2)
    blob = hosts.stores[0].put(BIG)
    greedy = hosts.hosts[1].resources = Greedy(missing)
    assert hosts.run(lambda: hosts.swarm.push(blob, hosts.peers(1)[0])) is None
    assert greedy.puts == 1


def test_a_push_ends_in_a_time_that_follows_its_size() -> None:
    hosts = Hosts(2)
    blob = hosts.stores[0].put(BIG)
    hosts.network.faults.clogged["h1"] = 15.0  # Every chunk just in time for itself.
    assert hosts.run(lambda: hosts.swarm.push(blob, hosts.peers(1)[0])) is None
    assert hosts.loop.time() < 2.5 + len(BIG) / 32_000 + 1


def test_a_receipt_is_checked_on_arrival() -> None:
    hosts = Hosts(3)
    blob = hosts.stores[0].put(SMALL)

    def is_of(holder: int) -> Callable[[Signed], bool]:
        public = hosts.identities[holder].public
        return lambda signed: open_signed(signed, Receipt, public) is not None

    async def pushes() -> list[bool]:
        peer = hosts.peers(1)[0]
        return [await hosts.swarm.push(blob, peer, is_of(holder)) is not None for holder in (1, 2)]

    assert hosts.run(pushes) == [True, False]


def test_a_silent_peer_costs_little_and_is_asked_last_for_a_while() -> None:
    hosts = Hosts(5)
    for store in hosts.stores[1:]:
        blob = store.put(SMALL)
    other = hosts.stores[0].put(b"to be pushed")
    hosts.hosts[1].paused = True
    hosts.hosts[2].paused = True
    names = lambda peers: [peer.address for peer in peers]  # noqa: E731

    async def main() -> list[float]:
        times = [hosts.loop.time()]
        assert await hosts.swarm.push(other, hosts.peers(2)[0]) is None
        times.append(hosts.loop.time())
        assert await hosts.swarm.fetch(blob, len(SMALL), hosts.peers(1, 3, 4)) is not None
        times.append(hosts.loop.time())
        # The first of them was not waited out: only who failed for certain is remembered.
        assert names(hosts.swarm.order(hosts.peers(2, 1, 3, 4))) == ["h1", "h3", "h2", "h4"]
        assert names(hosts.swarm.order(hosts.peers(3, 2))) == ["h3", "h2"], "the last resort stays"
        await asyncio.sleep(REMEMBER_S)
        assert names(hosts.swarm.order(hosts.peers(2, 1, 3, 4))) == ["h2", "h1", "h3", "h4"]
        assert hosts.swarm.order([]) == []
        return times

    began, pushed, fetched = hosts.run(main)  # type: ignore[misc]
    assert pushed - began < 1.5 and fetched - pushed < 1.0, "a fifth of the time-out, and a tenth"


@pytest.mark.parametrize("size_known", [True, False])
def test_a_silent_peer_among_others_does_not_hold_up_a_big_blob(size_known: bool) -> None:
    hosts = Hosts(4)
    for store in hosts.stores[1:]:
        store.put(BIG)
    hosts.hosts[1].paused = True
    assert hosts.fetch(BIG, [1, 2, 3], size=len(BIG) if size_known else None) is not None
    assert hosts.loop.time() < 4


def silent(count: int) -> Hosts:
    """As many that say nothing, and one more at the end that does."""
    hosts = Hosts(count + 2)
    for host in hosts.hosts[1:-1]:
        host.paused = True
    return hosts


SIZES = pytest.mark.parametrize("data", [SMALL, BIG[:400_000], BIG], ids=["tiny", "small", "big"])


@SIZES
@pytest.mark.parametrize(("asking", "most_s"), [(SEARCHING, 1.3), (BRIEFLY, 2.0), (PATIENTLY, 17.0)])
def test_that_nobody_has_it_is_known_as_soon_with_many_silent_peers_as_with_one(
    data: bytes, asking: Asking, most_s: float
) -> None:
    """A time-out of 5 s is 1 s for a request for little, and 15 s in all for a peer that has four chances."""
    hosts = silent(12)
    assert hosts.fetch(data, list(range(1, 14)), size=len(data), asking=asking) is None
    assert hosts.loop.time() < most_s


@SIZES
@pytest.mark.parametrize("place", [0, 6, 12])
@pytest.mark.parametrize("asking", [PATIENTLY, BRIEFLY], ids=["patiently", "briefly"])
def test_one_who_has_it_is_found_among_the_silent(data: bytes, place: int, asking: Asking) -> None:
    hosts = silent(12)
    hosts.stores[-1].put(data)
    which = list(range(1, 13))
    which.insert(place, 13)
    assert hosts.fetch(data, which, size=len(data), asking=asking) is not None
    assert hosts.loop.time() < 6.0


@pytest.mark.parametrize("data", [BIG[:400_000], BIG], ids=["small", "big"])
def test_asking_all_at_once_brings_little_twice(data: bytes) -> None:
    hosts = Hosts(10)
    for store in hosts.stores[1:]:
        store.put(data)
    asking = Asking(at_once=True)
    assert hosts.fetch(data, list(range(1, 10)), size=len(data), asking=asking) is not None
    assert hosts.network.sent_bytes < len(data) + 12 * LITTLE_BYTES


@pytest.mark.parametrize("data", [BIG[:400_000], BIG], ids=["small", "big"])
@pytest.mark.parametrize("peers", [[1], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]], ids=len)
@pytest.mark.parametrize("brief", [False, True], ids=["patiently", "briefly"])
def test_a_blob_comes_over_a_line_of_256_kbit_s(data: bytes, peers: list[int], brief: bool) -> None:
    hosts = Hosts(9)
    for store in hosts.stores[1:]:
        store.put(data)
    hosts.hosts[0].link.down_bytes_s = 32_000
    hosts.swarm = Swarm(hosts.hosts[0], hosts.stores[0], RUN, timeout_s=20)
    if brief:
        hosts.run(lambda: hosts.fetch_again(data, peers))
    else:
        assert hosts.fetch(data, peers, size=len(data)) is not None
    assert hosts.stores[0].get(chunk_list(data).blob) == data
    assert hosts.loop.time() < 60 + 2 * len(data) / 32_000


@pytest.mark.parametrize("data", [BIG[:400_000], BIG], ids=["small", "big"])
def test_the_last_resort_joins_when_the_others_crawl(data: bytes) -> None:
    hosts = Hosts(3)
    for store in hosts.stores[1:]:
        store.put(data)
    hosts.hosts[1].link.up_bytes_s = 20_000
    report = hosts.fetch(data, [1, 2], size=len(data))
    assert report is not None and report.from_peers[hosts.hosts[2].node] > len(data) // 2
    assert hosts.loop.time() < 4


def test_the_last_resort_is_left_alone_while_the_others_are_quick() -> None:
    hosts = Hosts(3)
    for store in hosts.stores[1:]:
        store.put(BIG)
    hosts.hosts[1].link.up_bytes_s = 2_000_000
    report = hosts.fetch(BIG, [1, 2], size=len(BIG))
    assert report is not None and list(report.from_peers) == [hosts.hosts[1].node]


def test_one_of_many_has_it() -> None:
    for data in (SMALL, BIG):
        hosts = Hosts(30)
        hosts.stores[25].put(data)
        assert hosts.fetch(data, list(range(1, 30)), size=len(data)) is not None


@pytest.mark.parametrize("size", [0, 1, 13, 15, 5000, CHUNK_BYTES, CHUNK_BYTES + 1, 10**15, -1])
@pytest.mark.parametrize("data", [SMALL, BIG, b""], ids=["small", "big", "empty"])
def test_a_wrong_size_makes_nobody_look_wrong(size: int, data: bytes) -> None:
    hosts = Hosts(4)
    for store in hosts.stores[1:]:
        store.put(data)
    report = hosts.fetch(data, [1, 2, 3], size=size)
    assert report is not None and not report.wrong and hosts.stores[0].get(chunk_list(data).blob) == data


@pytest.mark.parametrize("size", [None, 5, 14, 10**9])
@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_nothing_larger_than_wanted_is_fetched(size: int | None, data: bytes) -> None:
    for max_bytes, expected in ((len(data) - 1, False), (len(data), True)):
        hosts = Hosts(3)
        for store in hosts.stores[1:]:
            store.put(data)
        report = hosts.fetch(data, [1, 2], size=size, max_bytes=max_bytes)
        assert (report is not None) is expected is hosts.stores[0].has(chunk_list(data).blob)


@pytest.mark.parametrize("name", ["../x", "", "g" * 64])
def test_an_id_that_is_none_is_not_fetched(name: str) -> None:
    hosts = Hosts(2)
    blob = BlobId(name)

    async def main() -> list[object]:
        peers = hosts.peers(1)
        return [await hosts.swarm.fetch(blob, 3, peers), await hosts.swarm.push(blob, peers[0])]

    assert hosts.run(main) == [None, None] and hosts.network.sent_bytes == 0
