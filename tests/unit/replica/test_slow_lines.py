"""Fetching over real connections that a volunteer's limits make slow. The times are a twentieth of the real ones."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.base.host import Peer
from shoal.base.ids import RunId
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.replica.transfer import TransferReport
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.limits import Limits
from shoal.worlds.real.loop import run

RUN = RunId("1" * 32)
SPEED_UP = 20
TIMEOUT_S = 20.0 / SPEED_UP
BLOB = random.Random(6).randbytes(2_300_000)


def _host(folder: Path, identity: Identity, **limits: float) -> RealHost:
    return RealHost(identity, FileDisk(folder), peer_port=0, limits=Limits(**limits))  # type: ignore[arg-type]


async def _seed(stack: AsyncExitStack, folder: Path, **limits: float) -> Peer:
    """A process that has the blob."""
    identity = Identity.generate()
    host = await stack.enter_async_context(_host(folder, identity, **limits))
    blobs = BlobStore(host.disk, host.reached)
    blobs.put(BLOB)
    resources = RunResources(
        run=RUN,
        identity=identity,
        blobs=blobs,
        read_entry=lambda _: None,
        is_member=lambda _: True,
        evidence=Evidence(run=RUN, coordinator=lambda: (), keep=lambda _: None),
        quota_bytes=1 << 40,
    )
    return Peer(node=identity.node, address=await host.offer(ResourcesByRun({RUN: resources})))


def _fetch(tmp_path: Path, seeds: list[dict[str, float]], **limits: float) -> TransferReport | None:
    async def main() -> TransferReport | None:
        async with AsyncExitStack() as stack:
            peers = [await _seed(stack, tmp_path / f"{i}", **lend) for i, lend in enumerate(seeds)]
            host = await stack.enter_async_context(_host(tmp_path / "here", Identity.generate(), **limits))
            store = BlobStore(host.disk, host.reached)
            swarm = Swarm(host, store, RUN, timeout_s=TIMEOUT_S)
            async with asyncio.timeout(60):
                report = await swarm.fetch(chunk_list(BLOB).blob, len(BLOB), peers)
            assert report is None or store.get(chunk_list(BLOB).blob) == BLOB
            return report

    return run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_a_line_of_256_kbit_s_is_enough(tmp_path: Path, count: int) -> None:
    rate = 32_000.0 * SPEED_UP
    report = _fetch(tmp_path, [{}] * count, max_down_bytes_s=rate)
    assert report is not None and sum(report.from_peers.values()) == len(BLOB)


def test_a_fast_last_resort_helps_out_a_capped_peer(tmp_path: Path) -> None:
    report = _fetch(tmp_path, [{"max_up_bytes_s": 20_000.0}, {}])
    assert report is not None and max(report.from_peers.values()) > len(BLOB) // 2
