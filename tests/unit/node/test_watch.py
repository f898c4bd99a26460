"""Asking for proof and giving it, over real connections."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from runlog.proofs import PROOF, WORTHLESS
from runlog.small_log import COORDINATOR, RUN, Clerk

from shoal.base.host import Peer, Refused
from shoal.node.link import ControlLink
from shoal.node.session import Invitation
from shoal.node.watch import FIRST_BYTES, Watch
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.runlog.chain import Equivocation
from shoal.runlog.entries import Stopped
from shoal.runlog.evidence import Evidence, encode_proof
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost


class Place:
    """A process of the run: its evidence, served to peers."""

    def __init__(self, folder: Path) -> None:
        identity = Identity.generate()
        self.host = RealHost(identity, FileDisk(folder), peer_port=0)
        self.evidence = Evidence(run=RUN, coordinator=lambda: (COORDINATOR.public,), keep=lambda _: None)
        resources = RunResources(
            run=RUN,
            identity=identity,
            blobs=BlobStore(self.host.disk, self.host.reached),
            read_entry=lambda position: bytes(position),
            is_member=lambda _: False,
            evidence=self.evidence,
            quota_bytes=0,
        )
        self._offered = ResourcesByRun({RUN: resources})
        self._node = identity.node
        invitation = Invitation(coordinator=COORDINATOR.node, addresses=(), run=RUN, token="")
        link = ControlLink(self.host, identity, invitation, lambda event: None, lambda addresses: None)
        self.watch = Watch(self.host, RUN, link, self.evidence)

    async def peer(self) -> Peer:
        return Peer(node=self._node, address=await self.host.offer(self._offered))


def _long_proof() -> bytes:
    """Larger than what is asked for at first."""
    clerk = Clerk()
    clerk.found()
    one, two = (clerk.make(Stopped(reason=letter * FIRST_BYTES)).encoded for letter in "ab")
    return encode_proof(Equivocation(one, two))


def _between_two(tmp_path: Path, proof: bytes) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(30):
            here, there = Place(tmp_path / "here"), Place(tmp_path / "there")
            await stack.enter_async_context(here.host)
            await stack.enter_async_context(there.host)
            peer = await there.peer()
            assert not await here.watch.ask(peer), "it has nothing"
            with pytest.raises(Refused, match="proves nothing"):
                await here.host.put(peer, f"{RUN}/proof", WORTHLESS["another run"], timeout_s=10)
            assert await here.host.put(peer, f"{RUN}/proof", proof, timeout_s=10) == b""
            assert there.evidence.encoded == proof
            assert await here.watch.ask(peer)
            assert here.evidence.encoded == proof

    asyncio.run(story())


def test_a_proof_goes_from_one_process_to_another_and_back(tmp_path: Path) -> None:
    _between_two(tmp_path, PROOF)


def test_a_long_proof_too(tmp_path: Path) -> None:
    _between_two(tmp_path, _long_proof())
