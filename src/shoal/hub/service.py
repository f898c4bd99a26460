"""A node of the parent run whose training is to let its region train.

In flow what a node hears, and the region's attested states; out flow updates between two of them, and the parent's news
for the region. Invariant: a hub claims nothing that its region's members did not attest, and counts no sample of
theirs twice; news enter the region once, whatever dies on the way.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial

import msgspec
import torch

from shoal.base.disk import SubDisk
from shoal.base.host import Host
from shoal.base.ids import BlobId
from shoal.hub.alignment import AlignmentFile
from shoal.hub.following import Follower, Standing
from shoal.hub.learner import HubLearner
from shoal.hub.region import Parent, Region
from shoal.node import events as ev
from shoal.node.learner import Learner
from shoal.node.options import NodeOptions, TrainerFactory
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.graft import apply_graft, encode_graft
from shoal.replica.state import decode_state
from shoal.runlog.entries import Genesis, Graft
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.identity import Identity

LOOK_EVERY_S = 0.25
"""Between two looks at the region, or an eighth of a heartbeat where that is longer."""


class HubService(NodeService):
    """One region's hub. `run()` returns why the parent run ended; the region must be served meanwhile."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        invitation: Invitation,
        make_trainer: TrainerFactory,
        options: NodeOptions,
        region: Region,
    ) -> None:
        super().__init__(host, identity, invitation, make_trainer, options)
        self.region = region
        self._follower: Follower | None = None
        self._claimed = 0
        """The region's position up to which its work was claimed."""
        self._graft: Graft | None = None
        """The news that were brought last."""
        self._entered = False
        """Whether they were seen in the region's log."""
        self._alignment = AlignmentFile(SubDisk(host.disk, f"runs/{invitation.run}/hub"), host.reached)

    # --- getting ready -------------------------------------------------------------------------------------

    async def _make_learner(self, trainer: Trainer, recipe: Recipe, genesis: Genesis) -> Learner:
        await self._open_region(recipe, genesis)
        self._follower = follower = Follower(self.region)
        while follower.latest is None:
            await follower.catch_up()
            await self.host.clock.sleep(LOOK_EVERY_S)
        items = genesis.manifest.train_items
        learner = await self.host.work(partial(HubLearner, trainer, recipe, items, self._save_before_claim))
        sequence = self._kept.sequence if self._kept else -1
        kept = await self.host.work(
            partial(self._alignment.load, sequence, genesis.layout.numel, self.region.run)
        )
        kept = kept or await self.host.work(self.region.untouched)
        self._claimed = kept.claimed if kept else follower.latest.at
        self._graft = kept.graft if kept else None
        if self._has_lost_news():
            self._graft, kept, self._claimed = None, None, follower.latest.at
        here = await self.host.work(partial(self._with_news, follower.latest))
        await self.host.work(partial(learner.start_over, here))
        if kept is not None:
            await self.host.work(partial(learner.resume, kept))
        if self._graft is not None and self._entered_at() is None:
            await self.region.graft(self._graft)  # The last hub died before it had entered.
        self._spawn(self._tend(learner), "tend the region")
        return learner

    async def _open_region(self, recipe: Recipe, genesis: Genesis) -> None:
        saved = self.machine.view.best_start()
        data = await self._supply.read(saved.blob, saved.size_bytes, saved.holders)
        state = await self.host.work(lambda: decode_state(data, genesis.layout))
        await self.region.open(
            Parent(run=self.invitation.run, genesis=genesis, recipe=recipe, state=state, read=self.blobs.get)
        )

    def _save_before_claim(self) -> None:
        self._save(self.machine.next_sequence)

    def _save(self, sequence: int) -> None:
        alignment = self._hub_learner().place(self._claimed, self._graft)
        if alignment is not None:
            self._alignment.save(sequence, msgspec.structs.replace(alignment, region=self.region.run))

    @property
    def _look_s(self) -> float:
        recipe = self.machine.recipe
        return max(LOOK_EVERY_S, recipe.membership.heartbeat_s / 8) if recipe else LOOK_EVERY_S

    def _hub_learner(self) -> HubLearner:
        learner = self._learner()
        assert isinstance(learner, HubLearner)
        return learner

    # --- the region trains, and its work is claimed ----------------------------------------------------------

    async def _train(self, work: ev.Train, stopped: asyncio.Event) -> None:
        """Wait until the region has trained as much as was planned; then claim it."""
        planned, assignment = work.planned, work.planned.assignment
        async with self._model:
            if not stopped.is_set():
                await self.host.work(partial(self._hub_learner().begin, assignment.steps))
        began = self.host.clock.now()
        closes_at = began + assignment.window_ms / 1000 if assignment.window_ms else math.inf
        wanted = assignment.steps * assignment.batch
        while not stopped.is_set():
            late = self.host.clock.now() >= closes_at
            # Where news are lost the region begins anew in a moment, and there is nothing to claim until then.
            known = self._follower if not self._has_lost_news() else None
            standing = known.attested(self._claimed + 1) if known else None
            trained = self.region.trained(self._claimed, standing.at, planned) if standing else None
            if standing is not None and trained is not None and trained.samples >= (1 if late else wanted):
                async with self._model:
                    if stopped.is_set():
                        break
                    self.tokens_per_s = trained.tokens / max(1e-3, self.host.clock.now() - began)
                    learner = self._hub_learner()
                    here = await self.host.work(partial(self._with_news, standing))
                    await self.host.work(partial(learner.follow, here))
                    learner.progress, self._claimed = trained, standing.at
                    self._post(ev.Trained(await self._make_claim(planned, learner)))
                break
            await self.host.clock.sleep(self._look_s)
        self._post(ev.TrainingEnded(planned.position))

    # --- the parent's news enter the region ------------------------------------------------------------------

    async def _tend(self, learner: HubLearner) -> None:
        """Follow the region, and bring it what the parent did: one graft at a time."""
        assert self._follower is not None
        while True:
            await self._follower.catch_up()
            latest, entered = self._follower.latest, self._entered_at() is not None
            rewound = (self._entered and not entered) or self._has_lost_news()
            if rewound and latest is not None:
                async with self._model:  # To before the region had the news.
                    await self.host.work(partial(learner.start_over, latest.state.params))
                    self._graft, self._claimed = None, latest.at
                entered = True
            elif self._graft is not None and not entered:
                # Once more: it may have entered and been undone again between two looks.
                await self.region.graft(self._graft)
            self._entered = entered and self._graft is not None
            if (entered or self._graft is None) and self.machine.at == self.machine.view.at:
                await self._bring_news(learner)
            await self.host.clock.sleep(self._look_s)

    def _entered_at(self) -> int | None:
        """The position at which the last graft entered the region; None if it has not."""
        graft = self._graft
        found = (step.position for step in reversed(self.region.view.path) if step.graft == graft)
        return None if graft is None else next(found, None)

    async def _bring_news(self, learner: HubLearner) -> None:
        view = self.machine.view
        async with self._model:
            news = await self.host.work(learner.news)
            if news is None or learner is not self.learner:
                return
            data = await self.host.work(lambda: encode_graft(news, learner.trainer.layout))
            blobs = self.region.service.runs[self.region.run].blobs
            blob: BlobId = await self.host.work(lambda: blobs.put(data))
            self._graft = Graft(parent=view.head, blob=blob, size_bytes=len(data))
            self._entered = False
            learner.brought()
            await self.host.work(partial(self._save, learner.last_sent))
        await self.region.graft(self._graft)

    def _has_lost_news(self) -> bool:
        """Whether news neither entered the region nor are here any more to do so."""
        graft = self._graft
        if graft is None or self._entered_at() is not None:
            return False
        return not self.region.service.runs[self.region.run].blobs.has(graft.blob)

    def _with_news(self, standing: Standing) -> torch.Tensor:
        """A region's parameters, with the graft that is on its way."""
        entered, graft = self._entered_at(), self._graft
        if graft is None or (entered is not None and entered <= standing.at):
            return standing.state.params
        blobs = self.region.service.runs[self.region.run].blobs
        return apply_graft(standing.state, blobs.get(graft.blob)).params
