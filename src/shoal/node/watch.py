"""Watching the coordinator: does it tell everybody the same, and does anybody have proof that it does not?

In flow entries and proofs from random peers; out flow entries to compare, and a proof to everyone who can be told.
Invariant: a peer's word counts for nothing here, only the coordinator's own signatures; and nothing here can hold
the node up for longer than its deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Host, Peer, Refused
from shoal.base.ids import NodeId, RunId
from shoal.node.link import ControlLink
from shoal.runlog.chain import MAX_ENTRY_BYTES
from shoal.runlog.evidence import MAX_PROOF_BYTES, Evidence

REQUEST_S = 10.0
FIRST_BYTES = 64 << 10
"""Most entries are smaller than this, and a monthly limit is charged for what is asked."""
ASK_EVERY_S = 10.0
"""About how often a node that hears nothing asks somebody, or every five heartbeats where those are rarer: nodes
without an address can be told in no other way."""
TELLINGS_AT_ONCE = 8
TELL_ALL_S = 20.0
STAY_ASKS = 3
"""So many askings one who has proof stays for those whom it could not tell."""


class Watch:
    """One node's watch over one run's coordinator."""

    def __init__(self, host: Host, run: RunId, link: ControlLink, evidence: Evidence) -> None:
        self._host = host
        self._run = run
        self._link = link
        self._evidence = evidence

    async def compare(self, position: int) -> bytes | None:
        """A random peer's entry at this position, having asked it for proof as well."""
        peer = self._somebody()
        if peer is None or await self.ask(peer):
            return None
        return await self._read(peer, f"log/{position}", MAX_ENTRY_BYTES)

    async def keep_asking(self) -> None:
        """Ask a random peer for proof, now and then, for as long as the node runs."""
        while True:
            await self._host.clock.sleep(self._ask_every_s * (0.5 + self._host.random.random()))
            peer = self._somebody()
            if peer is not None:
                await self.ask(peer)

    async def ask_coordinator(self) -> bool:
        """Ask the coordinator what it has against itself. True if there is proof now."""
        return await self.ask(self._link.sources()[-1])

    async def ask(self, peer: Peer) -> bool:
        """Ask a peer for proof. True if there is proof now, from it or from before."""
        if self._evidence.proof is None:
            found = await self._read(peer, "proof", MAX_PROOF_BYTES)
            if found:
                await self._host.work(lambda: self._evidence.take(found))
        return self._evidence.proof is not None

    async def spread(self, members: Iterable[NodeId], *, can_be_asked: bool) -> None:
        """Give the proof to everyone known; stay a while if there are `members` who can only come and ask."""
        told = await self._tell_all()
        if can_be_asked and not told.issuperset(members):
            await self._host.clock.sleep(STAY_ASKS * self._ask_every_s)

    async def _tell_all(self) -> set[NodeId]:
        """Who took it, of all peers and the coordinator."""
        slots, told = asyncio.Semaphore(TELLINGS_AT_ONCE), set[NodeId]()

        async def tell(peer: Peer) -> None:
            async with slots:
                with contextlib.suppress(ChannelClosed, Refused, ShoalError):
                    path, body = f"{self._run}/proof", self._evidence.encoded
                    await self._host.put(peer, path, body, timeout_s=REQUEST_S)
                    told.add(peer.node)

        peers = self._link.sources()
        self._host.random.shuffle(peers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_ALL_S), asyncio.TaskGroup() as tasks:
                for peer in peers:
                    tasks.create_task(tell(peer), name=f"tell {peer.node[:8]}")
        return told

    @property
    def _ask_every_s(self) -> float:
        return max(ASK_EVERY_S, 5 * self._link.heartbeat_s)

    def _somebody(self) -> Peer | None:
        peers = self._link.sources()[:-1]
        return self._host.random.choice(peers) if peers else None

    async def _read(self, peer: Peer, path: str, limit_bytes: int) -> bytes | None:
        """A peer's resource, whole, or None if it cannot be had now: comparing is never worth a failure."""
        whole = f"{self._run}/{path}"
        try:
            data = await self._host.get(peer, whole, 0, FIRST_BYTES, timeout_s=REQUEST_S)
            if len(data) == FIRST_BYTES:
                data += await self._host.get(peer, whole, FIRST_BYTES, limit_bytes, timeout_s=REQUEST_S)
        except (ChannelClosed, ShoalError):
            return None
        return data
