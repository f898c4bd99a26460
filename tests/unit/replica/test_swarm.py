"""Fetching and pushing under the simulated network, with peers that lie."""

import random
from collections.abc import Awaitable, Callable

import pytest

from shoal.base.host import Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.blobs import CHUNK_BYTES, BlobStore, chunk_list
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.wire.identity import Identity
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
        network = SimNetwork(self.loop)
        self.identities = [Identity(f"{i}".encode().ljust(32, b".")) for i in range(count)]
        self.members = {identity.node for identity in self.identities}
        self.hosts = [
            SimHost(self.loop, network, f"h{i}", 1, SimDisk(), node=identity.node, link=Link())
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
                quota_bytes=1 << 40,
            )
            host.resources = by_run
            self.offered.append(by_run)
        self.swarm = Swarm(self.hosts[0], self.stores[0], RUN, timeout_s=5)

    def peers(self, *which: int) -> list[Peer]:
        return [Peer(node=self.hosts[i].node, address=self.hosts[i].name) for i in which]

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
