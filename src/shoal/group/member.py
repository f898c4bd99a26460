"""A member at work: train, mask, and help to take the masks off the sum.

In flow the hub's calls; out flow masked numbers. Invariant: samples that went into masked numbers never go into others:
two sums of the same updates, over two sets of members, would tell who is in one and not in the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from shoal.base.disk import SubDisk, write_atomic
from shoal.base.errors import CODES, ChannelClosed, ShoalError
from shoal.base.host import Host, Peer, Refused
from shoal.base.ids import BlobId
from shoal.data.manifest import blobs as data_blobs
from shoal.group.answering import Answering
from shoal.group.messages import PATH, Ask, Call, Enter, Idle, Reply, Said, SayNumbers, read_reply
from shoal.group.sums import EXTRA_NUMBERS, assignment_of, words_of
from shoal.node.learner import Global, Learner
from shoal.node.options import NodeOptions, TrainerFactory
from shoal.node.session import Invitation
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import PLAIN
from shoal.replica.swarm import Swarm
from shoal.replica.update import open_update
from shoal.runlog.chain import MAX_ENTRY_BYTES, BadEntry, read_link
from shoal.runlog.entries import Genesis
from shoal.runlog.view import RunView
from shoal.secagg.messages import Refusal, Waiting
from shoal.secagg.terms import Terms, unsound
from shoal.strategy.masking import for_member
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.wire.identity import Identity

REQUEST_TIMEOUT_S = 20.0
ASK_EVERY_S = 0.25
RETRY_S = 1.0
_SPENT = "masked-samples"
LARGEST_BATCHES = 4
"""A plan's batch is at most so many times the recipe's."""


class GroupMember:
    """One member of one group. `run()` returns why it ended, or raises `ShoalError`."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        invitation: Invitation,
        make_trainer: TrainerFactory,
        options: NodeOptions,
    ) -> None:
        self.host, self.identity, self.invitation, self.options = host, identity, invitation, options
        self.doing = "connecting"
        self.rounds = 0
        """How many sums this member has helped to find."""
        self.learner: Learner | None = None
        self._make_trainer = make_trainer
        self._hub = Peer(node=invitation.coordinator, address=invitation.addresses[0])
        self._folder = SubDisk(host.disk, f"runs/{invitation.run}")
        self.blobs = BlobStore(self._folder, host.reached)
        self._swarm = Swarm(host, self.blobs, invitation.run, timeout_s=REQUEST_TIMEOUT_S)
        self._items = 0
        """How many samples the run has to train on."""
        self._spent = 0
        """Samples below this have gone into masked numbers."""
        self._sent: BlobId | None = None
        self._heartbeat_s = 2.0
        self._latest: Idle | Call | None = None
        """Which round the hub has said there is."""
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self._leaving.set()

    async def run(self) -> str:
        """Take part until the run ends, or this member leaves."""
        genesis, recipe = await self._meet()
        if not await self.options.agree(recipe, genesis):
            return "the volunteer declined"
        self._heartbeat_s = recipe.membership.heartbeat_s
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(self._beat(), name="sign of life")
            working = tasks.create_task(self._work(genesis, recipe), name="masked rounds")
            leaving = tasks.create_task(self._leaving.wait(), name="leave")
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for task in (beating, working, leaving):
                task.cancel()
        return "left" if working.cancelled() else working.result()

    async def _work(self, genesis: Genesis, recipe: Recipe) -> str:
        learner = self.learner = await self._prepare(genesis, recipe)
        while True:
            told = await self._say(Ask())
            if isinstance(told, Idle) and told.over:
                return told.over
            if isinstance(told, Call):
                await self._round(told, learner, recipe)
            elif isinstance(told, Idle | Waiting):
                self.doing = f"waiting: {told.reason}"
            await self.host.clock.sleep(ASK_EVERY_S)

    # --- getting ready -------------------------------------------------------------------------------------

    async def _meet(self) -> tuple[Genesis, Recipe]:
        """Show the token, and read the run's first entry. Raises what the hub refuses with."""
        began = self.host.clock.now()
        while True:
            try:
                await self._put(Enter(self.invitation.token, self.identity.public))
                path = f"{self.invitation.run}/log/0"
                entry = await self.host.get(self._hub, path, 0, MAX_ENTRY_BYTES, timeout_s=REQUEST_TIMEOUT_S)
                return self._read_genesis(entry)
            except Refused as refusal:
                raise _refused(str(refusal)) from None
            except ChannelClosed as error:
                if self.host.clock.now() - began > self.options.give_up_s:
                    raise ShoalError(
                        "SH-JOIN-05",
                        f"the group's hub does not answer: {error}",
                        "check the ticket's address",
                    ) from None
            await self.host.clock.sleep(RETRY_S)

    def _read_genesis(self, entry: bytes) -> tuple[Genesis, Recipe]:
        view = RunView()
        try:
            view.apply(read_link(entry))
        except BadEntry as error:
            raise ChannelClosed(f"the hub's log does not begin with a run: {error}") from None
        genesis = view.genesis
        if genesis is None or view.run != self.invitation.run:
            raise ChannelClosed("the hub's log is of another run")
        recipe = recipe_in_log(genesis.recipe)
        if not recipe.masking.on:
            raise ShoalError(
                "SH-RUN-01", f"run {recipe.name!r} has no masked groups", "join it by its own ticket"
            )
        return genesis, recipe

    async def _prepare(self, genesis: Genesis, recipe: Recipe) -> Learner:
        await self.host.work(self._remember)
        self.doing = "fetching the data"
        for blob in data_blobs(genesis.manifest):
            await self._fetch(blob, None)
        self._items = genesis.manifest.train_items
        build = partial(self._make_trainer, recipe, genesis, self.blobs.get)
        trainer = await self.host.work(build)
        own = recipe.model_copy(update={"strategy": for_member(recipe.strategy)})
        return await self.host.work(partial(Learner, trainer, own, genesis.manifest.train_items))

    async def _fetch(
        self, blob: BlobId, size_bytes: int | None, is_vain: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """A blob's bytes, however long it takes; None once it is in vain."""
        while not is_vain():
            if await self._swarm.fetch(blob, size_bytes, [self._hub]) is not None:
                with contextlib.suppress(FileNotFoundError, ShoalError):
                    return await self.host.work(partial(self.blobs.get, blob))
            await self.host.clock.sleep(RETRY_S)
        return None

    # --- a round -------------------------------------------------------------------------------------------

    async def _round(self, call: Call, learner: Learner, recipe: Recipe) -> None:
        if why := self._refuses(call, recipe):
            self.doing = f"refused a round: {why}"
            return
        try:
            await self._take_part(call, learner)
        finally:
            await self.host.work(partial(self._forget, call))

    async def _take_part(self, call: Call, learner: Learner) -> None:
        loss = await self._train(call, learner)
        if loss is None:
            return
        numbers = partial(self._numbers, call, learner, loss)
        answering = Answering(self.identity, call.terms, self.host.random.randbytes)
        said: Said | Refusal | None = answering.hello()
        while said is not None and not isinstance(said, Refusal):
            told = await self._say(said) if not isinstance(said, Ask) else await self._ask()
            said = await self._next(answering, told, numbers, call)
        self.rounds += answering.revealed
        self.doing = f"gave a round up: {said.why}" if said else "done with a round"

    async def _next(
        self, answering: Answering, told: Reply, numbers: Callable[[], object], call: Call
    ) -> Said | Refusal | None:
        """What to say to what was told; None once the round is over."""
        if answering.is_for_numbers(told):
            if refusal := answering.receive(told):
                return refusal
            self.doing = "masking"
            await self.host.work(partial(self._spend, call.task.data.start + call.task.data.count))
            made = await self.host.work(partial(answering.mask, numbers))
            if isinstance(made, Refusal):
                return made
            blob = self._sent = await self.host.work(partial(self.blobs.put, made.numbers))
            while await self._swarm.push(blob, self._hub) is None:
                if self._is_given_up(call):
                    return None
                await self.host.clock.sleep(RETRY_S)
            return answering.keep(SayNumbers(made.signed, blob))
        return answering.answer(told)

    def _refuses(self, call: Call, recipe: Recipe) -> str:
        """Why this member takes no part in a round; "" if it does."""
        terms, task, learner = call.terms, call.task, self.learner
        assert learner is not None
        if why := unsound(terms) or _differs(terms, recipe, self.invitation, learner.trainer.layout.numel):
            return why
        if task.data.start < self._spent:
            return "its samples have been in masked numbers already"
        most = LARGEST_BATCHES * recipe.inner.batch_size
        sound = task.steps >= 1 and 1 <= task.batch <= most and task.data.count == task.steps * task.batch
        if self._items <= task.batch:
            return "its batch is all of the data: every such update is of the same samples"
        if not sound or task.base_bytes != 4 * learner.trainer.layout.numel:
            return "its work is none of this run's"
        return ""

    async def _train(self, call: Call, learner: Learner) -> float | None:
        """The assigned steps from the run's state; the mean loss, or None if the round is over before."""
        task = call.task
        self.doing = "training"
        base = await self._fetch(task.base, task.base_bytes, partial(self._is_given_up, call))
        if base is None:
            return None
        params = torch.frombuffer(bytearray(base), dtype=torch.float32)
        await self.host.work(learner.forget)
        await self.host.work(partial(learner.adopt, Global(params=params)))
        assignment, done = assignment_of(self.identity.node, task), 0
        while done < task.steps:
            if self.options.may_train():
                await self.host.clock.sleep(RETRY_S)
                continue
            job = partial(learner.train, assignment, task.first_step, done, 1)
            await self.host.work(job, seconds=self.options.step_seconds)
            done += 1
            if self._is_given_up(call):
                return None
        return learner.progress.loss_sum / max(1, learner.progress.steps)

    def _is_given_up(self, call: Call) -> bool:
        """Whether the hub has given the round up, or begun another one meanwhile."""
        latest = self._latest
        return isinstance(latest, Idle) or (
            isinstance(latest, Call) and latest.terms.session != call.terms.session
        )

    def _spend(self, upto: int) -> None:
        """Remember, before they leave, which samples are in masked numbers."""
        self._spent = max(self._spent, upto)
        write_atomic(self._folder, _SPENT, str(self._spent).encode(), self.host.reached)

    def _remember(self) -> None:
        if self._folder.size(_SPENT) is not None:
            text = self._folder.read(_SPENT)
            if not text.isdigit():
                raise ShoalError(
                    "SH-DISK-02",
                    f"{_SPENT} of run {self.invitation.run[:12]} does not say which samples were masked",
                    "join the group from another home: what was masked once must not be masked again",
                )
            self._spent = int(text)

    def _forget(self, call: Call) -> None:
        for blob in (call.task.base, self._sent):
            if blob is not None:
                self.blobs.discard(blob)
        self._sent = None

    def _numbers(self, call: Call, learner: Learner, loss: float) -> object:
        """This member's update as whole numbers."""
        layout = learner.trainer.layout
        fragments = tuple(range(len(layout.fragments)))
        opened = open_update(learner.make_update(fragments, call.task.round).blob, layout, fragments, PLAIN)
        assert opened is not None
        update = torch.empty(layout.numel)
        for index, source in opened.items():
            part = layout.fragments[index]
            source.decode(0, part.numel, 1.0, update[part.start : part.stop])
        return words_of(call.terms.fixed, update, loss)

    # --- talking -------------------------------------------------------------------------------------------

    async def _ask(self) -> Reply:
        await self.host.clock.sleep(ASK_EVERY_S)
        return await self._say(Ask())

    async def _beat(self) -> None:
        """Signs of life, whatever else this member is busy with."""
        while True:
            await self.host.clock.sleep(self._heartbeat_s)
            await self._say(Ask(beat=True))

    async def _say(self, said: Said) -> Reply:
        """Say it until there is an answer. A hub that was restarted is shown the token again. Raises what it refuses
        with, if it lets this member in no more."""
        while True:
            try:
                return await self._put(said)
            except Refused as refusal:
                if "enter with the group's token" not in str(refusal):
                    return Waiting(str(refusal)[:200])
                await self._enter_again()
            except ChannelClosed:
                self.doing = "the hub does not answer"
            await self.host.clock.sleep(RETRY_S)

    async def _enter_again(self) -> None:
        try:
            await self._put(Enter(self.invitation.token, self.identity.public))
        except Refused as refusal:
            raise _refused(str(refusal)) from None
        except ChannelClosed:
            pass  # It is tried again, as what was to be said is.

    async def _put(self, said: Said) -> Reply:
        body = msgspec.msgpack.encode(said)
        path = f"{self.invitation.run}/{PATH}"
        reply = read_reply(await self.host.put(self._hub, path, body, timeout_s=REQUEST_TIMEOUT_S))
        if reply is None:
            raise ChannelClosed("the hub's reply cannot be read")
        if isinstance(reply, Idle | Call):
            self._latest = reply
        return reply


def _differs(terms: Terms, recipe: Recipe, invitation: Invitation, numel: int) -> str:
    """Where a round's terms are not the recipe's."""
    if terms.group != invitation.run or terms.hub != invitation.coordinator:
        return "it is of another group"
    if terms.numel != numel + EXTRA_NUMBERS or terms.limit != recipe.masking.limit:
        return "its numbers are others than the recipe's"
    members = len(terms.roster)
    if members < recipe.masking.members or terms.threshold < recipe.masking.threshold_of(members):
        return f"{terms.threshold} of {members} members protect less than the recipe says"
    allowed = recipe.membership.allow
    if allowed and not set(terms.nodes) <= set(allowed):
        return "the run's list does not have all of its members"
    return ""


def _refused(words: str) -> ShoalError:
    code, _, cause = words.partition(": ")
    if code not in CODES:
        code, cause = "SH-JOIN-02", words
    return ShoalError(
        code, f"the hub refuses this member: {cause}", "ask whoever keeps the group for a ticket"
    )
