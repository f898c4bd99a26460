"""A node at work. Read from top to bottom, this is the data's way once round:

batch -> local steps -> pseudo-gradient -> codec -> blob -> claim -> seal -> fetch -> decode -> aggregate ->
outer step -> attest -> merge -> next batch.

In flow entries from the coordinator and blobs from peers; out flow updates, claims and attestations. Invariant:
the machine decides, one event at a time; long work runs in tasks beside it, so that heartbeats never wait for
a step; only the training task and merges touch the local model, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.host import Host
from shoal.base.ids import BlobId
from shoal.data.manifest import blobs as data_blobs
from shoal.node import events as ev
from shoal.node.auditing import Auditor, Means
from shoal.node.claiming import claim_of
from shoal.node.folding import Item, ShardFolder
from shoal.node.learner import Global, Learner, MadeUpdate, Met, PrivateState
from shoal.node.meeting import fetch_meeting
from shoal.node.options import NodeOptions, TrainerFactory
from shoal.node.presence import Presence
from shoal.node.private import Privately, private_part
from shoal.node.progress import Unsettled
from shoal.node.session import Invitation
from shoal.node.supply import RETRY_S, Waiting
from shoal.replica.fold import FoldRules, check_arithmetic, fold_step
from shoal.replica.pieces import cut_pieces
from shoal.replica.state import State, decode_state, encode_state, state_hash
from shoal.runlog.entries import Attestation, Claim, Folding, Genesis
from shoal.runlog.statements import most_bytes
from shoal.runlog.view import SavedState, Step, head_of
from shoal.runlog.work import Planned
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    Attest,
    Heartbeat,
    Offer,
)
from shoal.wire.signed import Signed

AHEAD = 4
"""Seals whose updates are fetched while an earlier one is folded."""


class NodeService(Presence):
    """One node in one run. `run()` returns why the run ended, or raises `ShoalError`."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        invitation: Invitation,
        make_trainer: TrainerFactory,
        options: NodeOptions,
    ) -> None:
        super().__init__(host, identity, invitation, options)
        self.state: State | None = None
        self.learner: Learner | None = None
        self.tokens_per_s = 0.0
        self._make_trainer = make_trainer
        self._rules: FoldRules | None = None
        self._auditor = Auditor(host, identity, self.blobs, self._supply, self._link.send)
        self._folder = ShardFolder(host, self._own_disk, self.blobs, self._supply)
        self._model = asyncio.Lock()
        self._candidate: tuple[int, State] | None = None
        self._met: Met | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._attested: tuple[Attestation, Signed] | None = None
        self._state_task: asyncio.Task[None] | None = None
        self._exhausted = ""
        """Why this node contributes no more, once its privacy budget is spent."""

    # --- events and effects ------------------------------------------------------------------------------

    async def _carry_out(self, effect: ev.Effect) -> None:
        run = self.invitation.run
        match effect:
            case ev.Record():
                append = partial(self.keeping.log.append, run, effect.position, effect.encoded)
                await self.host.work(append)
            case ev.KeepReceipt():
                await self.host.work(partial(self.keeping.save_receipt, effect.page, effect.encoded))
            case ev.SendUp():
                await self._link.send(effect.message)
                if isinstance(effect.message, Offer):
                    self.host.reached("node.after-claim")
            case ev.Prepare():
                self._spawn(self._prepare(effect.genesis), "prepare")
            case ev.Load():
                self._state_task = self._spawn(self._load(effect.saved), "load")
            case ev.Fold():
                self._state_task = self._spawn(self._fold(effect), "fold")
            case ev.FoldShards():
                self._state_task = self._spawn(self._fold_shards(effect.step), "fold shards")
            case ev.SaveSnapshot():
                self._state_task = self._spawn(self._save_snapshot(effect.at), "save")
            case ev.CancelState():
                if self._state_task is not None:
                    self._state_task.cancel()
            case ev.Adopt():
                await self._adopt(effect)
            case ev.StartOver():
                await self._start_over()
            case ev.SendAttestation():
                await self._attest(effect)
            case ev.Train():
                self._stop_training.set()  # A task that was told to stop may still be in its last step.
                self._stop_training = asyncio.Event()
                self._spawn(self._train(effect, self._stop_training), "train")
            case ev.StopTraining():
                self._stop_training.set()
            case ev.Publish():
                self._spawn(self._publish(effect), "publish")
            case ev.PushTo():
                self._spawn(self._supply.push_to_coordinator(effect.blob), "push")
            case ev.Prune():
                await self._prune()
            case ev.Disputed():
                await self._dispute(effect)
            case ev.Finish():
                if self._finished is not None and not self._finished.done():
                    self._finished.set_result(effect.reason)

    # --- batch -> local steps -> pseudo-gradient -> codec -> blob -> claim ---------------------------------

    async def _train(self, work: ev.Train, stopped: asyncio.Event) -> None:
        """Train an assignment, make its update durable, then go on with the spare steps if there are any."""
        learner, assignment = self._learner(), work.planned.assignment
        await self._taken_in()
        async with self._model:
            if not stopped.is_set():
                await self.host.work(partial(learner.begin, assignment.steps))
                await self._auditor.commit(learner, self.machine.view)
            carried = learner.progress.steps
        goal, total = max(1, assignment.steps - carried), assignment.steps + assignment.spare
        closes_at = self.host.clock.now() + assignment.window_ms / 1000 if assignment.window_ms else math.inf
        job_s = self.options.job_s
        done, claimed, pace = 0, False, job_s
        while done < total and not stopped.is_set():
            left = (total if claimed else goal) - done
            if reason := self.options.may_train() or self._out_of_privacy(learner, left):
                self.machine.doing = f"paused: {reason}"
                await self.host.clock.sleep(RETRY_S)
                if not stopped.is_set():
                    self.machine.doing = f"training round {work.planned.round}"
                continue
            left_s = math.inf if claimed else closes_at - self.host.clock.now()
            count = max(1, int(min(left, min(job_s, left_s) / pace)))
            async with self._model:
                if stopped.is_set():
                    break
                pace = await self._steps(learner, work.planned, done, count)
                done += count
                tokens = learner.progress.tokens / learner.progress.steps
                self.tokens_per_s = tokens / pace
                if not claimed and not stopped.is_set():
                    claimed = done >= goal or self.host.clock.now() >= closes_at
                    if claimed:
                        self._post(ev.Trained(await self._make_claim(work.planned, learner)))
        self._post(ev.TrainingEnded(work.planned.position))

    def _out_of_privacy(self, learner: Learner, steps: int) -> str:
        """Why this node may not train so many steps more; "" if it may. What was spent never comes back."""
        if learner.privately is not None:
            learner.privately.take_place(self.machine.view.members, self.identity.node)
            self._exhausted = learner.privately.refusal(steps)
        return self._exhausted

    async def _steps(self, learner: Learner, planned: Planned, done: int, count: int) -> float:
        """Some steps as one job; how long one of them took."""
        began = self.host.clock.now()
        job = partial(learner.train, planned.assignment, planned.step, done, count)
        usual = self.machine.recipe.inner.batch_size if self.machine.recipe else planned.assignment.batch
        steps = count * planned.assignment.batch / usual  # A step's time is for the recipe's batch.
        await self.host.work(job, seconds=self.options.step_seconds * steps)
        pace = max(1e-4, (self.host.clock.now() - began) / count)
        self.meter.stepped(pace, planned.assignment.batch)
        return pace

    async def _make_claim(self, planned: Planned, learner: Learner) -> ev.Outgoing:
        """Encode, store and sign; durable before anyone hears of it."""
        fates = {
            sent.sequence: self.machine.view.fate_of(self.identity.node, sent.sequence, sent.plan)
            for sent in learner.unsettled
        }
        await self.host.work(partial(learner.settle, fates, self.blobs.get))
        place, shards = planned.place, planned.shards
        recipe = self.machine.recipe
        if recipe is not None and recipe.storage.push == "everybody":
            self._supply.all_for_all = not shards and recipe.strategy.merge.kind != "pairs"
        given = planned.assignment
        work = (planned.fragments, planned.round, place, self.state, shards, given.thin, given.codec)
        make = partial(learner.make_update, *work)
        made = await self.host.work(make)
        if learner.privately is not None:
            await self.host.work(partial(learner.privately.save, self.host.reached))
        blob = await self.host.work(partial(self.blobs.put, made.blob))
        pieces = await self._cut(planned, made.blob)
        if not pieces:
            self._spawn(self._supply.spread(blob, len(made.blob), self._receipts_wanted), "spread")
        private = await self.host.work(learner.private_state)
        claim = self._claim(planned, made, private, blob)
        if pieces and self.machine.recipe and self.machine.recipe.storage.pieces:
            needed = self.machine.recipe.storage.pieces.k
            claim = msgspec.structs.replace(claim, pieces=pieces, pieces_needed=needed)
        outgoing = ev.Outgoing(claim=claim, signed=self._sign(claim))
        await self.host.work(partial(self.keeping.save_outgoing, outgoing, private.data))
        learner.sent(Unsettled.of(claim))
        return outgoing

    async def _cut(self, planned: Planned, data: bytes) -> tuple[BlobId, ...]:
        """The update's coded pieces, stored here, where it is to leave in pieces."""
        how = self.machine.recipe.storage.pieces if self.machine.recipe else None
        if how is None or (how.when == "planned" and not planned.assignment.coded):
            return ()
        pieces = await self.host.work(partial(cut_pieces, data, how.k, how.n))
        return tuple([await self.host.work(partial(self.blobs.put, piece)) for piece in pieces])

    def _claim(self, planned: Planned, made: MadeUpdate, private: PrivateState, blob: BlobId) -> Claim:
        return claim_of(self.machine, planned, made, private, blob)

    async def _publish(self, work: ev.Publish) -> None:
        claim = work.outgoing.claim

        def published(receipts: tuple[Signed, ...]) -> None:
            self.host.reached("node.before-claim")
            self._post(ev.Published(claim.sequence, receipts))

        await self._supply.publish(
            claim,
            self.machine.view,
            self._receipts_wanted,
            to_coordinator=work.to_coordinator,
            published=published,
        )

    @property
    def _receipts_wanted(self) -> int:
        return self.machine.recipe.storage.receipts if self.machine.recipe else 1

    # --- seal -> fetch -> decode -> aggregate -> outer step ------------------------------------------------

    async def _fold(self, work: ev.Fold) -> None:
        step = work.step
        if ahead := self._behind(step):
            self._spawn(self._supply.fetch_ahead(ahead), "fetch ahead")
        state = await self._adopt_digests(step) if step.shards else None
        while state is None:
            await self._supply.fetch_updates(step, self._waiting(step))
            state = await self.host.work(partial(self._fold_now, step))
        self._met = await self._meeting(step)
        hashed = await self.host.work(partial(state_hash, state))
        snapshot = (
            await self.host.work(lambda: self.blobs.put(encode_state(state))) if work.snapshot else None
        )
        validation = await self._evaluate(state) if work.evaluate else None
        self._candidate = (step.position, state)
        self._post(ev.HasState(at=step.position, state=hashed, snapshot=snapshot, validation=validation))

    def _behind(self, step: Step) -> list[Step]:
        """The next few seals after this one, if the log has them already: a node that fetched for one at a time would
        never catch up with seals that come faster than it is answered."""
        index = self.machine.view.index_of(step.position)
        later = self.machine.view.path[index + 1 : index + 1 + AHEAD] if index is not None else []
        return [each for each in later if not each.shards and not any(one.pieces for one in each.folded)]

    def _fold_now(self, step: Step) -> State | None:
        """The next state, or None if an update is not there (any more), or rotten, and must be fetched again."""
        assert self.state is not None and self._rules is not None
        try:
            blobs = [self.blobs.get(blob) for blob in step.blobs]
        except (FileNotFoundError, ShoalError):
            return None
        return fold_step(self.state, step, blobs, self._rules)

    def _waiting(self, step: Step) -> Waiting:
        return lambda blob, seconds: self._post(ev.CannotFetch(step.position, blob, seconds))

    async def _adopt_digests(self, step: Step) -> State:
        assert self.state is not None and self._rules is not None
        return await self._folder.adopt(step, self.state, self._rules, self._waiting(step))

    async def _fold_shards(self, step: Step) -> None:
        """Make the digests of this node's shards, for everybody."""
        assert self.state is not None and self._rules is not None
        node, reachable = self.identity.node, bool(self._blob_address)
        make = self._folder.make(
            step, node, self.state, self._rules, self._waiting(step), reachable=reachable
        )
        word = self._folding(step, await make)
        self.host.reached("node.before-folding")
        self._post(ev.ShardsFolded(step.position, self._sign(word)))

    def _folding(self, step: Step, items: tuple[Item, ...]) -> Folding:
        at = head_of(self.machine.view, step.position)
        return Folding(run=self.invitation.run, node=self.identity.node, at=at, items=items)

    async def _evaluate(self, state: State) -> float:
        async with self._model:
            return await self.host.work(partial(self._learner().evaluate, state.params))

    # --- attest -> merge -> next batch ---------------------------------------------------------------------

    async def _attest(self, word: ev.SendAttestation) -> None:
        step = self.machine.view.step_at(word.at)
        attestation = Attestation(
            run=self.invitation.run,
            node=self.identity.node,
            at=head_of(self.machine.view, word.at),
            state=word.state,
            how="adopted" if step is not None and step.adopted else "folded",
            snapshot=word.snapshot,
            validation=word.validation,
        )
        if self._attested is None or self._attested[0] != attestation:
            self._attested = (attestation, self._sign(attestation))  # It is said again until the log has it.
        await self._link.send(Attest(attestation=self._attested[1]))

    async def _adopt(self, work: ev.Adopt) -> None:
        """Go on folding from the new state, and have the local model take it in, at once if it has a moment: a step may
        take longer than the next seal."""
        if self._candidate is None or self._candidate[0] != work.at:
            return
        before, self.state = self.state, self._candidate[1]
        self._candidate = None
        self._auditor.adopted(work.at, self.state)
        step = self.machine.view.step_at(work.at)
        learner, met = self._learner(), self._met
        jobs: list[Callable[[], object]] = []
        if step is None or not step.pairs or self.state is not before:
            fragments = step.fragments if step else None
            new = Global(params=self.state.params, position=work.at, fragments=fragments)
            jobs.append(partial(learner.adopt, new, working=work.working, settled=work.settled))
        if met is not None and met.position == work.at:
            jobs.append(partial(learner.meet, met))
        pending = self._adopting if self._adopting is not None and not self._adopting.done() else None
        if pending is None and not self._model.locked():
            await self._take_in(work.at, jobs, None)
        else:
            self._adopting = self._spawn(self._take_in(work.at, jobs, pending), "adopt")
        self._spawn(self._compare_logs(), "compare logs")

    async def _take_in(
        self, at: int, jobs: Sequence[Callable[[], object]], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        async with self._model:
            for job in jobs:
                await self.host.work(job)

    async def _taken_in(self) -> None:
        """Wait until the local model knows every state that was adopted so far."""
        if self._adopting is not None:
            await self._adopting

    async def _meeting(self, step: Step | None) -> Met | None:
        view, node = self.machine.view, self.identity.node
        return await fetch_meeting(view, step, node, self._supply, self.machine.recipe)

    async def _start_over(self) -> None:
        await self._taken_in()
        async with self._model:
            learner = self._learner()
            learner.forget()
            if self.state is not None:
                await self.host.work(partial(learner.adopt, Global(params=self.state.params)))

    # --- getting ready -------------------------------------------------------------------------------------

    async def _prepare(self, genesis: Genesis) -> None:
        """Once the volunteer agrees: fetch the data and build the model."""
        assert self.machine.recipe is not None
        check_arithmetic(genesis)
        if not await self.options.agree(self.machine.recipe, genesis):
            await self.leave("the volunteer declined")
            return
        build = partial(self._make_trainer, self.machine.recipe, genesis, self.blobs.get)
        for blob in data_blobs(genesis.manifest):
            await self._supply.read(blob, None)
        trainer = await self.host.work(build)
        self._rules = self.machine.recipe.strategy.fold_rules()
        self._resources.quota_bytes = self.machine.recipe.storage.quota_bytes
        self._resources.max_blob_bytes = most_bytes(genesis)
        learner = await self._make_learner(trainer, self.machine.recipe, genesis)
        if self._local is not None:
            # A state that was damaged on disk costs momentum, not correctness: begin with a fresh one.
            with contextlib.suppress(ShoalError):
                await self.host.work(partial(learner.load_local_state, self._local))
                if self._kept is not None:
                    learner.sent(Unsettled.of(self._kept))
        self.learner = learner
        if self._auditor.equip(self._means(learner, self._rules, genesis)):
            self._spawn(self._auditor.keep_auditing(self.machine.view, self._model), "audit")
        self._post(ev.Prepared())

    def _means(self, learner: Learner, rules: FoldRules, genesis: Genesis) -> Means:
        assert self.machine.recipe is not None
        return Means(
            recipe=self.machine.recipe,
            learner=learner,
            rules=rules,
            items=genesis.manifest.train_items,
            step_seconds=self.options.step_seconds,
        )

    async def _make_learner(self, trainer: Trainer, recipe: Recipe, genesis: Genesis) -> Learner:
        make = partial(
            private_part, recipe, genesis.manifest.train_items, self.host.random.randbytes, self._own_disk
        )
        privately = await self.host.work(make)
        return await self.host.work(
            partial(Learner, trainer, recipe, genesis.manifest.train_items, privately)
        )

    @property
    def privately(self) -> Privately | None:
        """What this node does for its privacy, once the model is built; None where the run asks for none."""
        return self.learner.privately if self.learner else None

    async def _load(self, saved: SavedState) -> None:
        """Begin from a saved state, verified against the hash in the log."""
        genesis = self.machine.view.genesis
        assert genesis is not None
        data = await self._supply.read(saved.blob, saved.size_bytes, saved.holders)
        state = await self.host.work(lambda: decode_state(data, genesis.layout))
        hashed = await self.host.work(partial(state_hash, state))
        if hashed != saved.state:
            raise ShoalError(
                "SH-LOG-05",
                f"the saved state at {saved.at} has hash {hashed[:16]}, the log says {saved.state[:16]}",
                "the organiser must rewind the run to a sound state",
            )
        self._met = await self._meeting(self.machine.view.step_at(saved.at))
        async with self._model:
            self._learner().forget()
        self._candidate = (saved.at, state)
        self._post(ev.HasState(at=saved.at, state=hashed, snapshot=saved.blob, validation=None))

    async def _save_snapshot(self, at: int) -> None:
        assert self.state is not None
        state = self.state
        blob = await self.host.work(lambda: self.blobs.put(encode_state(state)))
        hashed = await self.host.work(partial(state_hash, state))
        self._post(ev.HasState(at=at, state=hashed, snapshot=blob, validation=None))

    async def _prune(self) -> None:
        if self.machine.recipe is None or self.learner is None:
            return  # What it still needs of its own is known once the model is built; the next snapshot will do.
        keep, round_number = self.machine.needed_blobs(), self.machine.view.round
        keep |= {sent.blob for sent in self.learner.unsettled} | self._auditor.kept(self.machine.view)
        spare_bytes = self.machine.recipe.storage.keep_bytes
        await self.host.work(lambda: self.blobs.prune(keep, round_number, spare_bytes=spare_bytes))

    def _learner(self) -> Learner:
        if self.learner is None:
            raise AssertionError("work before the model was built")
        return self.learner

    # --- signs of life ---------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        # Whether or not it has work: it is not to be given any.
        reason = self.options.may_train() or self._exhausted
        up, down = self.options.traffic()
        now = self.host.clock.now()
        progress = self.learner.progress if self.learner else None
        return Heartbeat(
            at=self.machine.at,
            length=self.machine.view.length,
            peers=self._link.edition,
            doing=f"paused: {reason}" if reason else self.machine.doing,
            paused=bool(reason),
            step=progress.steps if progress else 0,
            loss=progress.last_loss if progress else 0.0,
            tokens_per_s=self.tokens_per_s,
            up_bytes=up,
            down_bytes=down,
            device=self.options.device,
            probe=self.meter.beat(now),
            vitals=self.meter.vitals(now, self.options.memory(), self.options.resent()),
            spent=self.privately.spent if self.privately else 0,
        )
