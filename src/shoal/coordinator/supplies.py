"""The blobs of a coordinator's runs: brought from whoever has them, kept for as long as they are needed.

In flow what machines want fetched; out flow events that say whether it came. Invariant: nothing here waits for a blob
before the next event is taken, and one that cannot be had is said to be missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from shoal.base.errors import ShoalError
from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.checkpoint.keeping import retain
from shoal.coordinator.copies import lasting_blobs
from shoal.coordinator.events import Archive, BlobFetched, Event, FetchBlob
from shoal.coordinator.served import Run
from shoal.replica.asking import PATIENTLY, Asking
from shoal.replica.state import decode_state, state_hash
from shoal.wire.messages import PleasePush, encode

REQUEST_TIMEOUT_S = 20.0
MEND_EVERY_S = 5.0
NOWHERE = -1
"""The position of a blob that no seal asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplies:
    """Of one coordinator, for all its runs."""

    host: Host
    runs: Mapping[RunId, Run]
    others: Callable[[], list[Peer]]
    """Another coordinator, which may have what is missing here."""
    post: Callable[[RunId, Event], Awaitable[None]]
    send: Callable[[Run, NodeId, bytes], None]
    spawn: Callable[[object, str], None]

    async def bring(
        self, run: RunId, blob: BlobId, size_bytes: int | None, holders: tuple[NodeId, ...]
    ) -> bool:
        """Have a run's blob here, if somebody gives it now."""
        served = self.runs[run]
        return await served.swarm.fetch(blob, size_bytes, self.sources(served, holders)) is not None

    async def mend(self) -> None:
        """Bring the states and data that the leader before had and this one has not: nodes hold them too."""
        while True:
            for run in list(self.runs.values()):
                for blob, size_bytes, holders in lasting_blobs(run.machine.view):
                    if not run.blobs.has(blob):
                        self.fetch(run, FetchBlob(NOWHERE, blob, size_bytes, holders))
            await self.host.clock.sleep(MEND_EVERY_S)

    def fetch(self, run: Run, effect: FetchBlob) -> None:
        if effect.blob not in run.fetching:
            run.fetching.add(effect.blob)
            self.spawn(self._fetch_blob(run, effect), f"fetch {effect.blob[:8]}")

    async def _fetch_blob(self, run: Run, effect: FetchBlob) -> None:
        asking = PATIENTLY
        if effect.is_missed:
            asking = Asking(at_once=True, waits_for=lambda node: node in self._live(run))
        sources = self.sources(run, effect.holders)
        await run.swarm.fetch(effect.blob, effect.size_bytes, sources, asking=asking)
        missing = not run.blobs.has(effect.blob)
        if missing:
            await self._have_pushed(run, effect)
        run.fetching.discard(effect.blob)
        size = run.blobs.size(effect.blob)
        state = (
            await self.host.work(lambda: _state_in(run, effect.blob)) if effect.is_state and size else None
        )
        pushed = missing and size is not None
        fetched = BlobFetched(at=effect.at, blob=effect.blob, size_bytes=size, state=state, pushed=pushed)
        await self.post(run.machine.run, fetched)

    async def archive(self, run: Run, effect: Archive) -> None:
        """Keep a copy of every sealed update, one seal after the other; what cannot be had now is let go."""
        async with run.archiving:
            for blob, size_bytes, holders in effect.updates:
                await run.swarm.fetch(blob, size_bytes, self.sources(run, holders))

    async def prune(self, run: Run) -> None:
        keep, round_number = run.machine.needed_blobs(), run.machine.view.round
        spare_bytes = run.machine.recipe.storage.keep_bytes
        rules = run.machine.recipe.storage.retention
        await self.host.work(lambda: retain(run.machine.view, run.blobs, rules))
        await self.host.work(lambda: run.blobs.prune(keep, round_number, spare_bytes=spare_bytes))

    def sources(self, run: Run, holders: tuple[NodeId, ...]) -> list[Peer]:
        """Who can be asked for a blob: those that hold it first."""
        seats = run.machine.seats.by_node
        order = [*holders, *(node for node in seats if node not in holders)]
        peers = [Peer(node=node, address=seats[node].address) for node in order if node in seats]
        return [peer for peer in (*peers, *self.others()) if peer.address]

    def _live(self, run: Run) -> frozenset[NodeId]:
        return run.machine.seats.live(self.host.clock.now())

    async def _have_pushed(self, run: Run, effect: FetchBlob) -> None:
        """Have the blob brought by one of its holders that cannot be asked for it, if one is there, in due time."""
        seats = run.machine.seats.by_node
        hidden = [n for n in effect.holders if n in self._live(run) and not seats[n].address]
        if not hidden:
            return
        self.send(run, hidden[0], encode(PleasePush(blob=effect.blob)))
        deadline = self.host.clock.now() + REQUEST_TIMEOUT_S
        while (
            not run.blobs.has(effect.blob)
            and self.host.clock.now() < deadline
            and hidden[0] in self._live(run)
        ):
            await self.host.clock.sleep(0.2)


def _state_in(run: Run, blob: BlobId) -> str | None:
    """The hash of the state in a snapshot, or None if there is none in it."""
    genesis = run.machine.view.genesis
    try:
        return state_hash(decode_state(run.blobs.get(blob), genesis.layout)) if genesis else None
    except (ShoalError, FileNotFoundError):
        return None
