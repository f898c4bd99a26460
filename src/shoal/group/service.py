"""A node of the run whose training is a masked round of its group.

In flow what a node hears, and masked numbers; out flow updates of the whole group. Invariant: the hub claims the mean
of as many members as the threshold says, and never holds a member's numbers without masks.
"""

from __future__ import annotations

import asyncio
from functools import partial

from shoal.base.host import Host, Refused, Resources
from shoal.base.ids import BlobId, NodeId
from shoal.group.desk import Desk
from shoal.group.messages import PATH, Task
from shoal.group.sums import EXTRA_NUMBERS, SumLearner, mean_of, progress_of, tasks_for
from shoal.node import events as ev
from shoal.node.learner import Learner
from shoal.node.options import NodeOptions, TrainerFactory
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.serving import ResourcesByRun
from shoal.runlog.entries import DataRange, Genesis
from shoal.runlog.work import Planned
from shoal.secagg.collector import Collector, Stage, Total
from shoal.secagg.messages import Refusal
from shoal.secagg.terms import Terms
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.identity import Identity

LOOK_EVERY_S = 0.1
FAREWELL_S = 20.0
"""How long a hub stays after the run's end for its members to hear of it."""


class GroupService(NodeService):
    """One group's hub. `run()` returns why the run ended. Members reach it where its blobs are served."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        invitation: Invitation,
        make_trainer: TrainerFactory,
        options: NodeOptions,
        token: str,
    ) -> None:
        super().__init__(host, identity, invitation, make_trainer, options)
        self.desk = Desk(
            token=token,
            now=host.clock.now,
            read=self.blobs.get,
            size=self.blobs.size,
            admits=self._admits,
        )
        self.failure = ""
        """In words, why the last round came to nothing."""
        self.opened = asyncio.Event()
        """Set once members may come."""
        self._attempt = 0

    @property
    def address(self) -> str:
        """Where members reach this hub; "" until it is open, and where nobody can."""
        return self._blob_address

    # --- the door --------------------------------------------------------------------------------------------

    def _offered(self) -> Resources:
        return _WithDesk(
            ResourcesByRun({self.invitation.run: self._resources}), self.invitation.run, self.desk
        )

    def _lodges(self, node: NodeId) -> bool:
        return self.desk.is_guest(node)

    def _admits(self, node: NodeId) -> bool:
        recipe = self.machine.recipe
        allowed = recipe.membership.allow if recipe else ()
        return not allowed or node in allowed

    async def run(self) -> str:
        """As a node does; members are told of the run's end."""
        reason = await super().run()
        if self.machine.view.stopped is not None:
            self.desk.end("the run is over", over=reason)
            until = self.host.clock.now() + FAREWELL_S
            while self.desk.unaware() and self.host.clock.now() < until:
                await self.host.clock.sleep(LOOK_EVERY_S)
        return reason

    async def _make_learner(self, trainer: Trainer, recipe: Recipe, genesis: Genesis) -> Learner:
        self.desk.lease_s = recipe.membership.lease_s
        self.desk.end("no round yet")
        self.opened.set()
        return await self.host.work(partial(SumLearner, trainer, recipe, genesis.manifest.train_items))

    # --- a round -----------------------------------------------------------------------------------------------

    async def _train(self, work: ev.Train, stopped: asyncio.Event) -> None:
        """Have the group train what was planned, and claim the mean of it."""
        planned, learner = work.planned, self._learner()
        assert isinstance(learner, SumLearner)
        async with self._model:
            if not stopped.is_set():
                await self.host.work(partial(learner.begin, planned.assignment.steps))
        terms = await self._gathered(planned, stopped)
        if terms is not None:
            began = self.host.clock.now()
            tasks = tasks_for(terms.nodes, planned, await self._base(learner, planned))
            total = await self._round(terms, tasks, stopped)
            if isinstance(total, Total):
                mean, loss = await self.host.work(partial(mean_of, terms.fixed, total))
                progress = progress_of(total, tasks, planned, loss, self._tokens_a_sample())
                self.tokens_per_s = progress.tokens / max(1e-3, self.host.clock.now() - began)
                async with self._model:
                    if not stopped.is_set():
                        await self.host.work(partial(learner.take, mean, progress))
                        self._post(ev.Trained(await self._make_claim(planned, learner)))
                self.failure = ""
            else:
                self.failure = f"{total.why}: {total.node[:12]}" if total.node else total.why
                if total.node:
                    self.desk.dismiss(NodeId(total.node))
            await self._drop(self.desk.end(self.failure or "between two rounds"))
        self._post(ev.TrainingEnded(planned.position))

    async def _gathered(self, planned: Planned, stopped: asyncio.Event) -> Terms | None:
        """The terms of the next round, once enough members are here."""
        recipe = self.machine.recipe
        assert recipe is not None and recipe.masking.on
        while not stopped.is_set():
            roster = self.desk.present()[: planned.assignment.steps]
            if len(roster) >= recipe.masking.members:
                self._attempt += 1
                return Terms(
                    group=self.invitation.run,
                    hub=self.identity.node,
                    round=planned.position,
                    attempt=self._attempt,
                    roster=tuple(roster),
                    threshold=recipe.masking.threshold_of(len(roster)),
                    numel=self._learner().trainer.layout.numel + EXTRA_NUMBERS,
                    limit=recipe.masking.limit,
                )
            self.machine.doing = f"waiting for members: {len(roster)} of {recipe.masking.members}"
            await self.host.clock.sleep(LOOK_EVERY_S)
        return None

    async def _base(self, learner: SumLearner, planned: Planned) -> Task:
        data = await self.host.work(lambda: learner.base.numpy().tobytes())
        blob = await self.host.work(partial(self.blobs.put, data))
        return Task(
            base=blob,
            base_bytes=len(data),
            round=planned.round,
            first_step=planned.step,
            data=DataRange(planned.data.start, 0),
            steps=0,
            batch=planned.assignment.batch,
        )

    async def _round(
        self, terms: Terms, tasks: dict[NodeId, Task], stopped: asyncio.Event
    ) -> Total | Refusal:
        recipe = self.machine.recipe
        assert recipe is not None
        collector = Collector(terms)
        self.desk.begin(collector, tasks)
        stage, since = Stage.HELLOS, self.host.clock.now()
        training_s = max(recipe.masking.wait_s, recipe.strategy.seal_rule().deadline_s / 2)
        while not stopped.is_set():
            patience_s = training_s if stage == Stage.HELLOS else recipe.masking.wait_s
            now = self.host.clock.now()
            found = self.desk.advance(late=now - since > patience_s)
            stage, since = (found, now) if found != stage else (stage, since)
            self.machine.doing = f"masked round of {len(terms.roster)}: {stage.name.lower()}"
            if stage == Stage.FAILED:
                return collector.failure
            if stage == Stage.SUM:
                return await self.host.work(self.desk.finish)
            await self.host.clock.sleep(LOOK_EVERY_S)
        return Refusal("the round has expired")

    async def _drop(self, blobs: tuple[BlobId, ...]) -> None:
        """Forget masked numbers that were added up. (A liar may have named a blob that the run needs.)"""
        needed = self.machine.needed_blobs()
        for blob in blobs:
            if blob not in needed:
                await self.host.work(partial(self.blobs.discard, blob))

    def _tokens_a_sample(self) -> int:
        genesis = self.machine.view.genesis
        assert genesis is not None
        return genesis.manifest.context if genesis.manifest.kind == "tokens" else 1


class _WithDesk:
    """A node's resources, and the desk of its group beside them."""

    def __init__(self, inner: ResourcesByRun, run: str, desk: Desk) -> None:
        self._inner, self._path, self._desk = inner, f"{run}/{PATH}", desk

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        return self._inner.get(path, start, stop)

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if path == self._path:
            return self._desk.put(body, sender)
        if path.startswith(self._path):
            raise Refused("no such resource")
        return self._inner.put(path, body, sender)
