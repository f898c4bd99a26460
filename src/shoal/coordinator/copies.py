"""What a coordinator that stands by copies: the states and data it would need if it had to lead now.

In flow the store's logs and the leader's blobs; out flow blobs on this machine. Invariant: nothing here writes
to the store, a leader that does not answer costs one attempt, and no more is kept than the leader keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.checkpoint.keeping import retain
from shoal.data.manifest import blobs as data_blobs
from shoal.replica.blobs import BlobStore
from shoal.replica.swarm import Swarm
from shoal.runlog.chain import read_link
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Storage, recipe_in_log

FETCH_S = 20.0


def lasting_blobs(view: RunView) -> Iterator[tuple[BlobId, int | None, tuple[NodeId, ...]]]:
    """The states that a newcomer may begin with and the run's data, with size and holders."""
    if view.genesis is not None:
        for saved in view.kept_states():
            yield saved.blob, saved.size_bytes, saved.holders
        for blob in data_blobs(view.genesis.manifest):
            yield blob, None, ()


def tidy(view: RunView, blobs: BlobStore, storage: Storage, needed: Collection[BlobId]) -> None:
    """Let go of what neither the run nor its owner's rules need any more."""
    retain(view, blobs, storage.retention)
    blobs.prune(needed, view.round, spare_bytes=storage.keep_bytes)


class Copies:
    """One stand-by's copies, of all runs of the store."""

    def __init__(
        self,
        host: Host,
        store: LogStore,
        room: Callable[[RunId], BlobStore],
        other: Callable[[], list[Peer]],
        serve: Callable[[RunId, BlobStore], None],
        runs: Callable[[], list[RunId]] | None = None,
    ) -> None:
        self._host, self._store, self._room = host, store, room
        self._which = runs or store.runs
        self._other, self._serve = other, serve
        self._runs: dict[RunId, tuple[RunView, BlobStore]] = {}

    def views(self) -> list[RunView]:
        return [view for view, _ in self._runs.values()]

    async def follow(self) -> None:
        """Read what the logs have got since, and fetch one blob that is missing here."""
        for run in await self._host.work(self._which):
            if run not in self._runs:
                self._runs[run] = RunView(), self._room(run)
                await self._host.work(partial(self._serve, run, self._runs[run][1]))
            await self._copy(run, *self._runs[run])

    async def _copy(self, run: RunId, view: RunView, room: BlobStore) -> None:
        saved = len(view.snapshots)
        for encoded in await self._host.work(lambda: list(self._store.read(run, view.length))):
            view.apply(read_link(encoded))
        if len(view.snapshots) != saved and view.genesis is not None:
            storage = recipe_in_log(view.genesis.recipe).storage
            await self._host.work(lambda: tidy(view, room, storage, view.needed_blobs()))
        missing = next((blob for blob in lasting_blobs(view) if not room.has(blob[0])), None)
        if missing is not None:
            swarm = Swarm(self._host, room, run, timeout_s=FETCH_S)
            await swarm.fetch(missing[0], missing[1], self._other())
