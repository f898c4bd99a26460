"""A node's part in audits: it commits to its private states, shows them when asked, and runs others' claims again.

In flow the log, states and blobs; out flow signed screenings and verdicts. Invariant: what this node must do, it reads
in the log like everybody else; whatever it cannot judge it does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, takewhile

import numpy as np
import torch

from shoal.aggregate.sketch import EXACT_CHUNKS
from shoal.audit.comparing import distance, opened
from shoal.audit.docket import WINDOW, Case, Docket, Key
from shoal.audit.effects import Looking
from shoal.audit.screening import Parts, row_of, rows_of, scores
from shoal.base.errors import ShoalError
from shoal.base.host import Host
from shoal.base.ids import BlobId
from shoal.base.layout import Layout
from shoal.codec.base import CHUNK
from shoal.data.assignment import Indices, sample_indices
from shoal.node.learner import Learner
from shoal.node.looking import Assigned, Pulled, looking
from shoal.node.replaying import borrowed, run_again
from shoal.node.supply import Supply
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import FoldRules
from shoal.replica.sharded import fold_stored
from shoal.replica.state import State, decode_state
from shoal.runlog.entries import Claim, Screening, Verdict
from shoal.runlog.sharding import cut
from shoal.runlog.view import RunView, SavedState, Step, Update, head_of
from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity
from shoal.wire.messages import Audited, Message
from shoal.wire.signed import sign

LOOK_S = 1.0
PATIENCE_SEALS, PATIENCE_S = 3, 300.0
"""A private state that was asked for may take so many rounds to come, and never longer than this."""
ASK_S = 2.0
SHOWN_AGAIN = 8
STATES_KEPT, COMMITS_KEPT = 3, 3
UPDATES_REMEMBERED, SEALS_SKETCHED = 640, 2
"""So many earlier updates are read again when a seal is screened, and never those of fewer seals than cases are open
for; of few seals where each update has to be sketched."""

Stored = Callable[[Update], bytes | None]
"""An update's blob, if it is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What it takes to train: whole only once the model is built."""

    recipe: Recipe
    learner: Learner
    rules: FoldRules
    items: int
    step_seconds: float


class Auditor:
    """One node's, in one run. Does nothing unless the recipe asks for audits."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        blobs: BlobStore,
        supply: Supply,
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._host = host
        self._identity = identity
        self._blobs = blobs
        self._supply = supply
        self._send = send
        self._means: Means | None = None
        self._docket: Docket | None = None
        self._states: dict[int, State] = {}
        self._commits: deque[BlobId] = deque(maxlen=COMMITS_KEPT)
        self._shown: dict[Key, int] = {}
        self._done: set[Key] = set()
        self._unsaid: dict[Key, tuple[Screening | Verdict, Audited]] = {}
        """Words that the log does not have yet."""

    def equip(self, means: Means) -> bool:
        """The model is built; True if there will be audits."""
        self._means = means
        self._docket = Docket(means.recipe.audit) if means.recipe.audit.on else None
        return self._docket is not None

    def adopted(self, at: int, state: State) -> None:
        """Keep the latest states, which claims to be judged began from."""
        if self._docket is not None:
            self._states[at] = state
            for old in sorted(self._states)[:-STATES_KEPT]:
                del self._states[old]

    async def commit(self, learner: Learner, view: RunView) -> None:
        """Before the first step of an update: settle what is left of earlier ones, and store the private state that
        the claim will name."""
        if self._docket is None or learner.progress.steps:
            return
        fates = {
            sent.sequence: view.fate_of(self._identity.node, sent.sequence, sent.plan)
            for sent in learner.unsettled
        }
        await self._host.work(partial(learner.settle, fates, self._blobs.get))
        data = await self._host.work(learner.commit)
        self._commits.append(await self._host.work(partial(self._blobs.put, data)))

    def kept(self, view: RunView) -> set[BlobId]:
        """Private states that others may still ask for, and what the states of open cases can be rebuilt from."""
        if self._docket is None:
            return set()
        drawn = self._docket.accused(self._identity.node)
        oldest = view.path[-WINDOW - 2].position if len(view.path) > WINDOW + 2 else 0
        saved = _saved_before(view, oldest)
        steps = [step for step in view.path if saved is None or step.position > saved.at]
        steps += [*_remembered(view, len(view.path) - 1), *view.path[-1:]]
        found = {*self._commits, *(BlobId(case.update.claim.local_before) for case in drawn)}
        found |= {blob for step in steps for blob, _, _ in step.sources}
        return found | ({saved.blob} if saved is not None else set())

    # --- the loop ------------------------------------------------------------------------------------------

    async def keep_auditing(self, view: RunView, model: asyncio.Lock) -> None:
        """Look at the log, do what it asks of this node, say it until it is written down."""
        docket = self._docket
        assert docket is not None
        # Each case in a task of its own: waiting for one's state must not keep the others waiting.
        async with asyncio.TaskGroup() as tasks:
            while view.stopped is None:
                docket.follow(view)
                await self._say_again(docket, view)
                await self._show(docket)
                await self._screen(docket, view, model)
                for case in docket.duties(self._identity.node):
                    if case.key not in self._done:
                        self._done.add(case.key)
                        tasks.create_task(self._judge(case, view, model), name="judge")
                await self._host.clock.sleep(LOOK_S)

    async def _say_again(self, docket: Docket, view: RunView) -> None:
        for key, (word, message) in list(self._unsaid.items()):
            if docket.wants(view, word):
                await self._send(message)
            else:
                del self._unsaid[key]

    async def _say(self, key: Key, word: Screening | Verdict) -> None:
        hybrid = self._means is not None and self._means.recipe.identity.signatures == "hybrid"
        signed = sign(self._identity.hybrid if hybrid else self._identity, word)
        message = Audited(screening=signed) if isinstance(word, Screening) else Audited(verdict=signed)
        self._unsaid[key] = (word, message)
        await self._send(message)

    async def _show(self, docket: Docket) -> None:
        """Bring the private states of this node's drawn claims to the coordinator, where everybody finds them."""
        for case in docket.accused(self._identity.node):
            times = self._shown.get(case.key, 0)
            if times < SHOWN_AGAIN:
                self._shown[case.key] = times + 1
                await self._supply.push_to_coordinator(BlobId(case.update.claim.local_before))

    # --- every claim a little ------------------------------------------------------------------------------

    async def _screen(self, docket: Docket, view: RunView, model: asyncio.Lock) -> None:
        means, step = self._means, view.path[-1] if view.path else None
        if means is None or step is None or docket.screener(view, step) != self._identity.node:
            return
        key = (self._identity.node, step.position)
        if key in self._done:
            return
        self._done.add(key)
        works = [update.work for update in step.updates if update.work is not None]
        base = await self._state_at(view, works[0].at) if works else None
        if base is None:
            return
        blobs = [await self._supply.try_update(update) for update in step.updates]
        earlier = _remembered(view, view.index_of(step.position) or 0)
        async with model:
            job = partial(_scores, means, view, step, blobs, base, (earlier, self._stored))
            screened = means.recipe.audit.rate * means.recipe.strategy.schedule.steps * len(blobs)
            found = await self._host.work(job, seconds=means.step_seconds * screened)
        at = head_of(view, step.position)
        await self._say(key, Screening(run=view.run, node=self._identity.node, at=at, scores=found))

    def _stored(self, update: Update) -> bytes | None:
        try:
            return self._blobs.get(update.claim.blob)
        except (FileNotFoundError, ShoalError):
            return None

    # --- a few again ---------------------------------------------------------------------------------------

    async def _judge(self, case: Case, view: RunView, model: asyncio.Lock) -> None:
        """Run a claim again, and say what came of it."""
        means, update = self._means, case.update
        base = await self._state_at(view, update.work.at) if update.work is not None else None
        claimed = await self._supply.try_update(update)
        if means is None or base is None or claimed is None:
            return
        private = await self._private(update.claim, view)
        outcome, apart, again = "withheld", 0.0, None
        if private is not None:
            async with model:
                seconds = means.step_seconds * update.claim.steps
                again = await self._host.work(partial(_again, means, update, base, private), seconds=seconds)
            codec, layout = means.rules.codec_at(update.place, update.codec), base.layout
            apart = await self._host.work(partial(distance, update, claimed, again, layout, codec))
            outcome = "forged" if apart > means.recipe.audit.tolerance else "upheld"
        verdict = Verdict(
            run=view.run,
            node=self._identity.node,
            at=head_of(view, case.seal),
            author=update.claim.node,
            sequence=update.claim.sequence,
            outcome=outcome,
            distance=apart,
            tolerance=means.recipe.audit.tolerance,
            replayed=await self._evidence(again) if outcome == "forged" else None,
        )
        if view.stands(case.seal):
            await self._say(case.key, verdict)

    async def _evidence(self, again: bytes | None) -> BlobId | None:
        """This node's own update, where the coordinator keeps it."""
        if again is None:
            return None
        blob = await self._host.work(partial(self._blobs.put, again))
        await self._supply.push_to_coordinator(blob)
        return blob

    async def _private(self, claim: Claim, view: RunView) -> bytes | None:
        """The state that the claim commits to; None if nobody shows it in time."""
        began, stood = self._host.clock.now(), view.steps_done
        while self._host.clock.now() - began < PATIENCE_S and view.steps_done - stood < PATIENCE_SEALS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    return await self._supply.read(BlobId(claim.local_before), None, (claim.node,))
        return None

    async def _state_at(self, view: RunView, at: int) -> State | None:
        """The state after a seal: one of the latest, or folded again from a saved one, if all that takes is here."""
        if at in self._states:
            return self._states[at]
        try:
            return await self._host.work(partial(self._rebuild, view, at))
        except (FileNotFoundError, ShoalError):
            return None

    def _rebuild(self, view: RunView, at: int) -> State | None:
        saved = _saved_before(view, at)
        if saved is None or self._means is None or view.genesis is None or not view.stands(at):
            return None
        state = decode_state(self._blobs.get(saved.blob), view.genesis.layout)
        for step in view.path:
            if saved.at < step.position <= at:
                state = fold_stored(state, step, self._blobs.get, self._means.rules)
        return state


def _saved_before(view: RunView, at: int) -> SavedState | None:
    """The latest saved state that stands and is no newer than this."""
    return max(
        (s for s in view.snapshots if s.at <= at and view.stands(s.at)), key=lambda s: s.at, default=None
    )


def _again(means: Means, update: Update, base: State, private: bytes) -> bytes | None:
    trainer = means.learner.trainer
    with borrowed(trainer):
        try:
            return run_again(trainer, means.recipe, means.items, update, base, private)
        except ShoalError:
            return None  # What it committed to is no state of this run's.


def _remembered(view: RunView, index: int) -> Sequence[Step]:
    """The steps before this place of the path that say what updates differ by anyway."""
    counts = (len(view.path[place].updates) for place in range(index - 1, -1, -1))
    seals = seals_remembered(view.genesis.layout, counts) if view.genesis else 0
    return view.path[max(0, index - seals) : max(0, index)]


def seals_remembered(layout: Layout, updates: Iterable[int]) -> int:
    """How many seals say what updates differ by anyway; `updates` is how many each has, the newest first. A graft has
    none, and counts for one."""
    if any(fragment.numel > EXACT_CHUNKS * CHUNK for fragment in layout.fragments):
        return SEALS_SKETCHED
    totals = accumulate(max(1, count) for count in updates)
    return max(WINDOW, sum(1 for _ in takewhile(lambda total: total <= UPDATES_REMEMBERED, totals)))


def _scores(
    means: Means,
    view: RunView,
    step: Step,
    blobs: list[bytes | None],
    base: State,
    earlier: tuple[Sequence[Step], Stored],
) -> tuple[int, ...]:
    seed, trainer = view.hashes[step.position], means.learner.trainer
    parts = _parts(means, step, blobs, base)
    rows = rows_of(parts, seed)
    past = (one for one in _before(means, *earlier, base, seed) if one.shape[1] == rows.shape[1])
    last = next(past, None)
    if not isinstance(trainer, Pulled) or not any(parts):
        return scores(rows, last)
    before = past if last is None else chain((last,), past)
    with borrowed(trainer):
        trainer.load(base.params)
        return scores(rows, last, _looking(means, trainer, step, before, base, seed))


def _before(
    means: Means, steps: Sequence[Step], stored: Stored, base: State, seed: str
) -> Iterator[torch.Tensor]:
    """The updates of these seals, the newest first, one seal at a time; of those that are here whole."""
    for step in reversed(steps):
        found = [stored(update) for update in step.updates]
        if found and all(found):
            yield rows_of(_parts(means, step, found, base), seed)


def _parts(means: Means, step: Step, blobs: list[bytes | None], base: State) -> list[Parts | None]:
    codec_at, layout = means.rules.codec_at, base.layout
    return [
        None if blob is None else opened(update, blob, layout, codec_at(update.place, update.codec))
        for update, blob in zip(step.updates, blobs, strict=True)
    ]


def _looking(
    means: Means, trainer: Pulled, step: Step, earlier: Iterable[torch.Tensor], base: State, seed: str
) -> Looking:
    work = step.updates[0].work
    if work is not None and work.shards:
        spans = [(start, stop) for _, start, stop in cut(base.layout, step.fragments, work.shards)]
    else:
        fragments = base.layout.fragments
        spans = [(fragments[index].start, fragments[index].stop) for index in step.fragments]
    claims = [_assigned(means, update.claim) for update in step.updates]

    def row(pull: torch.Tensor) -> torch.Tensor:
        return row_of(pull.cpu(), spans, seed)

    return looking(trainer, means.recipe.audit, claims, earlier, row, seed)


def _assigned(means: Means, claim: Claim) -> Assigned:
    part = claim.data[-1]

    def at(places: Sequence[int]) -> Indices:
        each = [sample_indices(means.recipe.seed, part.start + place, 1, means.items) for place in places]
        return np.concatenate(each)

    return Assigned(author=claim.node, count=part.count, at=at)
