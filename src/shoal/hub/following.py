"""A region's state, folded by its hub from the log that it writes.

In flow entries and updates; out flow the last few states, with where they stand. Invariant: a state is handed out only
where a majority of those who attested it has the very same, so that a hub claims nothing that its members do not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId
from shoal.hub.region import Region
from shoal.replica.sharded import fold_stored
from shoal.replica.state import State, decode_state, state_hash
from shoal.runlog.view import SavedState, Step

STATES_KEPT = 4
"""Attestations come after the next seal at times, hardly later."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A state of the region's, and the position that it stands at."""

    at: int
    state: State
    hash: str


class Follower:
    """Keeps up with an open region."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._states: list[Standing] = []
        recipe = region.service.runs[region.run].machine.recipe
        self._rules = recipe.strategy.fold_rules()

    @property
    def latest(self) -> Standing | None:
        return self._states[-1] if self._states else None

    def attested(self, since: int) -> Standing | None:
        """The newest state at this position or later that the region's members agree on."""
        view = self._region.view
        for standing in reversed(self._states):
            words = view.attested.get(standing.at, {}).values()
            counts = Counter(word.state for word in words)
            if standing.at >= since and 2 * counts[standing.hash] > len(words):
                return standing
        return None

    async def catch_up(self) -> None:
        """Fold what the log has, as far as the updates are to be had now."""
        while await self._take_one():
            pass

    async def _take_one(self) -> bool:
        view = self._region.view
        self._states = [standing for standing in self._states if view.stands(standing.at)]
        latest = self.latest
        if latest is None or latest.at < view.kept_states()[0].at:
            return await self._load(view.best_start())
        step = view.next_step(latest.at)
        return step is not None and step.settled and await self._fold(latest.state, step)

    async def _load(self, saved: SavedState) -> bool:
        if not await self._bring(saved.blob, saved.size_bytes, saved.holders):
            return False
        genesis = self._region.view.genesis
        assert genesis is not None
        try:
            state = await self._work(lambda: decode_state(self._read(saved.blob), genesis.layout))
        except (FileNotFoundError, ShoalError):
            return False
        return await self._keep(saved.at, state)

    async def _fold(self, state: State, step: Step) -> bool:
        for source in step.sources:
            if not await self._bring(*source):
                return False
        try:
            folded = await self._work(partial(fold_stored, state, step, self._read, self._rules))
        except (FileNotFoundError, ShoalError):
            return False
        return await self._keep(step.position, folded)

    async def _keep(self, at: int, state: State) -> bool:
        hashed = await self._region.service.host.work(partial(state_hash, state))
        self._states = [*self._states, Standing(at, state, hashed)][-STATES_KEPT:]
        return True

    async def _bring(self, blob: BlobId, size_bytes: int, holders: tuple[NodeId, ...]) -> bool:
        return await self._region.service.supplies.bring(self._region.run, blob, size_bytes, holders)

    def _read(self, blob: BlobId) -> bytes:
        return self._region.service.runs[self._region.run].blobs.get(blob)

    async def _work(self, job: Callable[[], State]) -> State:
        return await self._region.service.host.work(job)
