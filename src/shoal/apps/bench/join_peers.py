"""One end of the join benchmark, as a process of its own: a seeder of a state, or the joiner that fetches it.

In flow a folder with the state's blob, or where its seeders are; out flow an address, or how long it took, as one line
of JSON. Invariant: both ends are the product's own: TLS, chunks, swarm and verification as in a run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from shoal.base.host import Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.layout import make_layout
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.state import decode_state, state_hash
from shoal.replica.swarm import Swarm
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.limits import Limits
from shoal.worlds.real.loop import run

RUN = RunId("join")
QUOTA_BYTES = 1 << 40


def _pass(point: str) -> None:
    return None


async def seed(folder: Path, bind: str, up_bytes_s: float) -> None:
    """Offer the folder's blobs until somebody ends this process; say where."""
    identity = Identity.generate()
    blobs = BlobStore(FileDisk(folder), _pass)
    for name in sorted(path.name for path in (folder / "blobs").iterdir()):
        blobs.chunks(BlobId(name))  # A seeder that holds a state knows its chunks already.
    limits = Limits(max_up_bytes_s=up_bytes_s or None)
    async with RealHost(identity, FileDisk(folder), bind=bind, peer_port=0, limits=limits) as host:
        resources = RunResources(
            run=RUN,
            identity=identity,
            blobs=blobs,
            read_entry=lambda position: None,
            is_member=lambda node: True,
            evidence=Evidence(run=RUN, coordinator=lambda: (), keep=lambda encoded: None),
            quota_bytes=QUOTA_BYTES,
        )
        address = await host.offer(ResourcesByRun({RUN: resources}))
        print(json.dumps({"node": identity.node, "address": address}), flush=True)
        await asyncio.Event().wait()


async def join(folder: Path, wish: dict[str, Any]) -> None:
    """Fetch a state, verify it as a joiner does, and say how long each took."""
    blob, size_bytes, numel = BlobId(wish["blob"]), int(wish["size_bytes"]), int(wish["numel"])
    seeders = [Peer(node=NodeId(node), address=address) for node, address in wish["seeders"]]
    limits = Limits(max_down_bytes_s=float(wish["down_bytes_s"]) or None)
    blobs = BlobStore(FileDisk(folder), _pass)
    async with RealHost(Identity.generate(), FileDisk(folder), limits=limits) as host:
        began = time.monotonic()
        report = await Swarm(host, blobs, RUN).fetch(blob, size_bytes, seeders)
        fetched = time.monotonic()
        state = decode_state(blobs.get(blob), make_layout([("all", (numel,))]))
        sound = state_hash(state) == wish["state"]
        ended = time.monotonic()
    told = {"whole": report is not None and sound, "transfer_s": fetched - began, "verify_s": ended - fetched}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "seed":
        run(seed(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
    else:
        run(join(Path(sys.argv[2]), json.loads(sys.argv[3])))
