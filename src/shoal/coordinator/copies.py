"""What a coordinator that stands by copies: the states and data it would need if it had to lead now.

In flow the store's logs and the leader's blobs; out flow blobs on this machine. Invariant: nothing here writes
to the store, a leader that does not answer costs one attempt, and no more states are kept than a leader keeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.checkpoint.keeping import retain
from shoal.coordinator.changing import CHANGES, WISH_PREFIX, changed_recipe
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


def let_go_of_states(view: RunView, blobs: BlobStore, storage: Storage) -> None:
    """Remove states that neither the run nor its owner's rules need any more, oldest first, until those left of them
    take no more than the owner allows. Nothing else goes: what else is here is from when this coordinator led."""
    retain(view, blobs, storage.retention)
    needed = view.needed_blobs()
    old = {saved.blob: blobs.size(saved.blob) or 0 for saved in view.snapshots if saved.blob not in needed}
    left_bytes = sum(old.values())
    for blob, size_bytes in old.items():
        if left_bytes <= storage.keep_bytes:
            return
        blobs.discard(blob)
        left_bytes -= size_bytes


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
        if len(view.snapshots) != saved:
            with contextlib.suppress(OSError):  # A disk that fails: it is tried again after the next state.
                await self._host.work(lambda: let_go_of_states(view, room, self._storage(run, view)))
        missing = next((blob for blob in lasting_blobs(view) if not room.has(blob[0])), None)
        if missing is not None:
            swarm = Swarm(self._host, room, run, timeout_s=FETCH_S)
            await swarm.fetch(missing[0], missing[1], self._other())

    def _storage(self, run: RunId, view: RunView) -> Storage:
        """What the recipe says, with what was changed since."""
        assert view.genesis is not None
        changes = self._store.kept(run, WISH_PREFIX).get(CHANGES)
        return changed_recipe(recipe_in_log(view.genesis.recipe), changes).storage
