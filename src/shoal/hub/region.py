"""A region's run, as its hub holds it: found once, found again after every start.

In flow the parent's genesis and one of its states; out flow a run of the region's own, and what its members trained.
Invariant: a region's genesis names its parent, has its parent's layout and data, and begins with a state of its.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.coordinator.events import GraftAsked
from shoal.coordinator.founding import FIRST_TERM, add_token, as_logged, being_founded
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import blobs as data_blobs
from shoal.hub.alignment import Alignment
from shoal.node.progress import Progress
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import State, decode_state, encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, Link, make_link
from shoal.runlog.entries import DataRange, Genesis, Graft
from shoal.runlog.view import RunView
from shoal.runlog.work import Planned
from shoal.strategy.recipe import Recipe
from shoal.strategy.signing import founder


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The run that a region belongs to, and a state of it to begin with."""

    run: RunId
    genesis: Genesis
    recipe: Recipe
    state: State
    read: Callable[[BlobId], bytes]
    """Its data, which are on this machine."""


class Region:
    """The region that a coordinator serves for a parent run. It goes on without its hub, and its hub without it."""

    def __init__(
        self,
        service: CoordinatorService,
        name: str,
        *,
        min_nodes: int = 1,
        at_work: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`at_work` is held while the region is founded, which may outlast the coordinator."""
        self.service = service
        self.name = name
        self.run = RunId("")
        """Its run, once it is open."""
        self.opened = asyncio.Event()
        self._min_nodes = min_nodes
        self._at_work = at_work

    @property
    def view(self) -> RunView:
        return self.service.runs[self.run].machine.view

    def find(self, parent: RunId) -> bool:
        """True if this coordinator has a region of this run already, which is then open."""
        for run, served in sorted(self.service.runs.items()):
            genesis = served.machine.view.genesis
            if genesis is not None and genesis.parent == parent:
                self._open(run)
                return True
        return False

    async def open(self, parent: Parent) -> None:
        """Serve the region of this run, founding it if there is none. Raises SH-RECIPE-03 if the run has no regions."""
        await self.service.ready.wait()
        if not self.find(parent.run):
            run = await self.service.host.work(lambda: self._found(parent))
            await self.service.open_run(run)
            self._open(run)

    def _open(self, run: RunId) -> None:
        self.run = run
        self.opened.set()

    def _found(self, parent: Parent) -> RunId:
        recipe = parent.recipe.for_region(self.name, self._min_nodes)
        service = self.service
        run = RunId(service.host.random.randbytes(16).hex())
        room = service.blob_store(run)
        with self._at_work(), being_founded(service.store, run, room):
            link = self._genesis(parent, recipe, run, room)
            service.store.append(run, link.entry.position, link.encoded)
        return run

    def _genesis(self, parent: Parent, recipe: Recipe, run: RunId, room: BlobStore) -> Link:
        service = self.service
        for blob in data_blobs(parent.genesis.manifest):
            room.put(parent.read(blob))
        state = initial_state(parent.state.layout, parent.state.params, recipe.strategy.fold_rules().slots)
        snapshot = encode_state(state)
        signer = founder(recipe, service.identity)
        genesis = Genesis(
            coordinator=signer.public,
            recipe=as_logged(recipe),
            manifest=parent.genesis.manifest,
            layout=parent.genesis.layout,
            state=state_hash(state),
            snapshot=room.put(snapshot),
            snapshot_bytes=len(snapshot),
            arithmetic=ARITHMETIC,
            parent=parent.run,
        )
        link = make_link(signer, run, NO_HEAD, FIRST_TERM, service.host.clock.wall_ms(), genesis)
        RunView().apply(link)  # the check that every reader of this log will make
        return link

    def untouched(self) -> Alignment | None:
        """Where a region stands to which nothing was ever brought: at the state it was founded with."""
        genesis = self.view.genesis
        if genesis is None or self.view.grafted >= 0:
            return None
        try:
            data = self.service.runs[self.run].blobs.get(genesis.snapshot)
            params = decode_state(data, genesis.layout).params.numpy().tobytes()
        except (FileNotFoundError, ShoalError):
            return None  # Long ago, and pruned since.
        return Alignment(anchor=params, known=params, news=b"", claimed=0)

    async def new_token(self) -> str:
        """Another secret that admits members; the region must be open."""
        service, host = self.service, self.service.host
        secret, token = await host.work(
            lambda: add_token(service.store, self.run, wall_ms=host.clock.wall_ms(), random=host.random)
        )
        served = service.runs[self.run]
        served.tokens = (*served.tokens, token)
        return secret

    async def graft(self, graft: Graft) -> None:
        """Have the parent's news enter when the region's round ends; their blob must be in its store."""
        await self.service.post(self.run, GraftAsked(graft))

    def trained(self, after: int, upto: int, planned: Planned) -> Progress:
        """What the members' updates sealed at positions (after, upto] come to, as work on this assignment: a region
        counts for no more than the parent planned for it."""
        steps = [step for step in self.view.path if after < step.position <= upto]
        claims = [update.claim for step in steps for update in step.updates]
        samples = sum(claim.samples for claim in claims)
        counted = min(samples, planned.data.count)
        count = max(1, counted // planned.assignment.batch)
        loss = sum(claim.loss * claim.samples for claim in claims) / max(1, samples)
        return Progress(
            steps=count if counted else 0,
            samples=counted,
            tokens=sum(claim.tokens for claim in claims) * counted // max(1, samples),
            loss_sum=loss * count,
            last_loss=loss,
            data=[DataRange(planned.data.start, counted)] if counted else None,
        )
