"""How fast a blob moves between two processes on this machine, against bare TLS streams.

In flows a size; out flow MB/s, the median of twelve interleaved rounds each after one to warm up: `bare`,
asyncio TLS streams on uvloop that move the bytes and nothing else, and `peer`, the way blobs really go: one node's
`Swarm` fetches from another's `BlobStore`, which is to say the list of chunks, then ranges over HTTP on 4 connections,
every 1 MiB checked by its BLAKE3 hash and written to disk, the file synced and given its name at the end. Invariant:
both move the same bytes between the same two processes, in the same minute, over connections that are open when the
clock starts, as nodes' are from their second exchange on.

Run as a module it is one of the two processes; the sending one prints where it serves and leaves when its
input ends.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import blake3

from shoal.base.disk import Disk
from shoal.base.host import Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import split_address
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.loop import run
from shoal.worlds.real.tls import client_context, server_context

CHUNK_BYTES = 1 << 20
ROUNDS = 12
"""A bare stream's time varies by half from one to the next: the best of a few says little."""
_TIMEOUT_S = 120.0
_RUN = RunId("0" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    """Where the sending process serves."""

    node: NodeId
    bare: str
    peer: str


def measure_blob(
    size_bytes: int, moved: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, float]:
    """Move a blob of `size_bytes` both ways, again and again; `moved` hears how often. MB/s are 10^6 bytes a second.

    Both ends are fresh processes, since the caller's heap would colour the result.
    """
    if size_bytes < 1:
        raise ValueError("a blob has at least one byte")
    command = [sys.executable, "-m", "shoal.worlds.real.bench", "receive", str(size_bytes)]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        too_long = threading.Timer(10 * _TIMEOUT_S, child.kill)
        too_long.daemon = True
        too_long.start()
        try:
            for line in child.stdout:
                lines.append(line)
                moved(min(len(lines), 1 + ROUNDS), 1 + ROUNDS)
        finally:
            too_long.cancel()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return {str(name): float(value) for name, value in json.loads(lines[-1]).items()}


def _receive(size_bytes: int) -> None:
    """The receiving process: starts the sending one, measures, prints the result."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        root = Path(folder)
        blob = _store(FileDisk(root / "sender")).put(_noise(size_bytes))
        with _sending(root / "sender", blob) as sender:
            bare_s, peer_s = run(_rounds(sender, FileDisk(root / "receiver"), size_bytes, blob))
    _print(
        {
            "size_bytes": size_bytes,
            "bare_mb_s": size_bytes / 1e6 / bare_s,
            "peer_mb_s": size_bytes / 1e6 / peer_s,
            "ratio": bare_s / peer_s,
        }
    )


async def _rounds(sender: _Sender, disk: FileDisk, size_bytes: int, blob: BlobId) -> tuple[float, float]:
    bare_s, peer_s = [], []
    async with RealHost(Identity.generate(), disk) as host:
        store = _store(disk)
        swarm = Swarm(host, store, _RUN)
        for _ in range(1 + ROUNDS):
            bare_s.append(await _timed_bare(sender, size_bytes))
            peer_s.append(await _timed_peer(swarm, store, sender, size_bytes, blob))
            _print({})
    # The first round of each pays for memory that the system has not handed out before, and for connections.
    return statistics.median(bare_s[1:]), statistics.median(peer_s[1:])


async def _timed_bare(sender: _Sender, size_bytes: int) -> float:
    host, port = split_address(sender.bare)
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(
            host, port, ssl=client_context(sender.node), server_hostname="", limit=CHUNK_BYTES
        )
        began, got = time.perf_counter(), 0
        while piece := await reader.read(CHUNK_BYTES):
            got += len(piece)
    elapsed = time.perf_counter() - began
    writer.close()
    if got != size_bytes:
        raise RuntimeError(f"the bare stream carried {got} bytes, not {size_bytes}")
    return elapsed


async def _timed_peer(
    swarm: Swarm, store: BlobStore, sender: _Sender, size_bytes: int, blob: BlobId
) -> float:
    store.discard(blob)
    began = time.perf_counter()
    async with asyncio.timeout(_TIMEOUT_S):
        await swarm.fetch(blob, size_bytes, [Peer(node=sender.node, address=sender.peer)])
    elapsed = time.perf_counter() - began
    if store.size(blob) != size_bytes:
        raise RuntimeError("the blob did not come")
    return elapsed


def _store(disk: Disk) -> BlobStore:
    return BlobStore(disk, lambda point: None)


def _noise(size_bytes: int) -> bytes:
    """As many bytes, the same ones every time."""
    return blake3.blake3(b"shoal bench blob").digest(length=size_bytes)


@contextmanager
def _sending(folder: Path, blob: BlobId) -> Iterator[_Sender]:
    """The sending process, alive within."""
    command = [sys.executable, "-m", "shoal.worlds.real.bench", "send", str(folder), blob]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            where = json.loads(child.stdout.readline())
            yield _Sender(node=NodeId(where["node"]), bare=where["bare"], peer=where["peer"])
        finally:
            child.kill()


async def _send(folder: Path, blob: BlobId) -> None:
    identity = Identity.generate()
    disk = FileDisk(folder)
    store = _store(disk)
    data = memoryview(store.get(blob))
    resources = RunResources(
        run=_RUN,
        identity=identity,
        blobs=store,
        read_entry=lambda position: None,
        is_member=lambda node: False,
        evidence=Evidence(run=_RUN, coordinator=lambda: (), keep=lambda proof: None),
        quota_bytes=0,
    )

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(data), CHUNK_BYTES):
            writer.write(data[start : start + CHUNK_BYTES])
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with RealHost(identity, disk, peer_port=0) as host:
        peer = await host.offer(ResourcesByRun({_RUN: resources}))
        server = await asyncio.start_server(pour, "127.0.0.1", 0, ssl=server_context(identity))
        port = server.sockets[0].getsockname()[1]
        _print({"node": identity.node, "bare": f"127.0.0.1:{port}", "peer": peer})
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()


def _print(value: dict[str, str] | dict[str, float]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "send":
        run(_send(Path(sys.argv[2]), BlobId(sys.argv[3])))
    else:
        _receive(int(sys.argv[2]))
