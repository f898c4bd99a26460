"""The node's logic: a pure machine, `step(now, event) -> effects`.

In flow entries of the log and news of work done; out flows the work to do next. Invariant: the node acts only
on entries it has checked and recorded; it begins an assignment from a state no older than its plan's, works on it
for as long as it may still be sealed, and offers the same bytes until the log shows what became of them.
"""

from __future__ import annotations

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.credit.ledger import read_receipt
from shoal.node.events import (
    Adopt,
    CancelState,
    CannotFetch,
    Connected,
    Disconnected,
    Disputed,
    Effect,
    Event,
    Finish,
    Fold,
    FoldShards,
    HasState,
    Heard,
    KeepReceipt,
    Load,
    Outgoing,
    Prepare,
    Prepared,
    Prune,
    Publish,
    Published,
    PushTo,
    Record,
    SaveSnapshot,
    SendAttestation,
    SendUp,
    ShardsFolded,
    StartOver,
    StopTraining,
    Ticked,
    Train,
    Trained,
    TrainingEnded,
)
from shoal.runlog.chain import BadEntry, Link, check_signature, read_link
from shoal.runlog.entries import Genesis, Rewind, Seal, Snapshot
from shoal.runlog.pairs import pairs_since_fold
from shoal.runlog.view import MAX_TEXT, RunView, Step
from shoal.runlog.work import Planned
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.wire import messages
from shoal.wire.hybrid import PUBLIC_BYTES
from shoal.wire.identity import node_id
from shoal.wire.signed import Signed

LOOK_BACK = 64
"""How many entries to ask for again when the coordinator's log seems to differ from ours."""
OFFER_AGAIN_S = 3.0


class NodeMachine:
    """One node in one run."""

    def __init__(
        self,
        *,
        node: NodeId,
        coordinator: NodeId,
        run: RunId,
        view: RunView,
        outgoing: Outgoing | None,
    ) -> None:
        self.node = node
        self._coordinator = coordinator
        self._run = run
        self._last_sequence = outgoing.claim.sequence if outgoing else -1
        self.view = view
        self.recipe: Recipe | None = None
        self._attest_every = 1
        self._read_recipe()
        self.at = -1
        """The seal whose state this node has; -1 while it has none."""
        self.doing = "connecting"
        self.connected = False
        self.why_out = ""
        """In words, why the coordinator last refused a claim."""
        self.note = ""
        """In words, why the coordinator gives this node no work."""
        self.earned_micro = 0
        self._paid_at = -1
        """By the last receipt."""
        self._prepared = False
        self._preparing = False
        self._making: int | None = None
        """The position whose state is being loaded or folded."""
        self._sharding: int | None = None
        """The seal whose digests this node makes, or has made."""
        self._folding: SendUp | None = None
        """Its word on them."""
        self._training: int | None = None
        """The plan of the training task that runs."""
        self._outgoing = outgoing
        self._settled_at = -1
        """The seal that settled the outgoing claim, if it was seen to."""
        self._receipts: tuple[Signed, ...] = ()
        self._publishing = False
        self._to_coordinator = False
        self._kept = False
        self._offered_at = -1e9
        self._word: SendAttestation | None = None
        self._finished = False
        self._effects: list[Effect] = []
        self._now = 0.0

    @property
    def next_sequence(self) -> int:
        """The sequence of the next claim: above every one that was ever used."""
        member = self.view.members.get(self.node)
        return max(self._last_sequence, member.last_sequence if member else -1) + 1

    def needed_blobs(self) -> set[BlobId]:
        """What this node must keep: what the log needs, and its own last update."""
        own = {self._outgoing.claim.blob} if self._outgoing else set()
        return self.view.needed_blobs() | own

    def step(self, now: float, event: Event) -> list[Effect]:
        self._now, self._effects = now, []
        match event:
            case Connected():
                self.connected = True
                self._offered_at = -1e9
                if self.recipe is not None and self.recipe.membership.coordinators:
                    self._kept = False  # It may be another that leads now, with a store of its own.
            case Disconnected():
                self.connected = False
            case Heard():
                self._heard(event.message)
            case Ticked():
                if self._word is not None and self._unattested(self._word.at):
                    self._effects.append(self._word)
                if self._folding is not None:
                    self._effects.append(self._folding)
            case Prepared():
                self._prepared, self._preparing = True, False
            case HasState():
                self._has_state(event)
            case Trained():
                self._take_outgoing(event.outgoing)
            case TrainingEnded():
                if self._training == event.plan:
                    self._training = None
            case Published():
                self._published(event)
            case ShardsFolded():
                if event.at == self._sharding:
                    self._folding = SendUp(messages.Folded(word=event.word))
                    self._effects.append(self._folding)
            case CannotFetch():
                self._cannot_fetch(event)
        self._advance()
        return self._effects

    # --- the log -----------------------------------------------------------------------------------------

    def _heard(self, message: messages.Message) -> None:
        match message:
            case messages.Entries():
                for encoded in message.items:
                    self._entry(encoded)
            case messages.Beat() | messages.Welcome():
                self.note = message.note[:MAX_TEXT] if isinstance(message, messages.Beat) else ""
                if message.length > self.view.length:
                    self._effects.append(SendUp(messages.NeedEntries(start=self.view.length)))
            case messages.ClaimAck():
                self._acked(message)
            case messages.Paid():
                self._paid(message.receipt)
            case messages.Rebuild():
                if message.at == self.at:
                    self._drop_state()
            case messages.PleasePush():
                self._effects.append(PushTo(message.blob))

    def _paid(self, encoded: bytes) -> None:
        """Keep a receipt that is this node's, signed by the coordinator, of this log as far as it is known here."""
        genesis = self.view.genesis
        receipt = read_receipt(encoded, self._run, genesis.coordinator[:PUBLIC_BYTES]) if genesis else None
        if receipt is None or receipt.node != self.node or receipt.page < 0 or receipt.position < 0:
            return
        hashes = self.view.hashes
        if receipt.position >= len(hashes) or hashes[receipt.position] == receipt.head:
            if receipt.position >= self._paid_at:  # The latest counts: what a conviction took back is gone.
                self._paid_at, self.earned_micro = receipt.position, receipt.cumulative_micro
            self._effects.append(KeepReceipt(receipt.page, encoded))

    def _entry(self, encoded: bytes) -> None:
        try:
            link = read_link(encoded)
        except BadEntry:
            return
        position = link.entry.position
        if position > self.view.length:
            self._effects.append(SendUp(messages.NeedEntries(start=self.view.length)))
        elif position < self.view.length:
            self._known(link)
        else:
            self._next(link)

    def _next(self, link: Link) -> None:
        if isinstance(link.entry.body, Genesis) and not self._is_ours(link.entry.run, link.entry.body):
            return
        try:
            self.view.apply(link)
        except BadEntry:
            # Perhaps the coordinator's log differs from ours further back: ask for it, and compare.
            self._effects.append(SendUp(messages.NeedEntries(start=max(0, self.view.length - LOOK_BACK))))
            return
        self._effects.append(Record(link.entry.position, link.encoded))
        self._read_recipe()
        if isinstance(link.entry.body, Seal) and self._settled_at < 0 and self._fate() is not None:
            self._settled_at = link.entry.position
        if isinstance(link.entry.body, Snapshot):
            self._effects.append(Prune())
        elif isinstance(link.entry.body, Rewind):
            self._stop_training()
            if self.at >= 0 and self.view.stands(self.at):
                self._effects.append(StartOver())

    def _read_recipe(self) -> None:
        if self.recipe is None and self.view.genesis is not None:
            self.recipe = recipe_in_log(self.view.genesis.recipe)
            self._attest_every = self.recipe.strategy.seal_rule().attest_every

    def _is_ours(self, run: RunId, genesis: Genesis) -> bool:
        """True for the run that the ticket names, founded by the coordinator that the ticket names."""
        return run == self._run and node_id(genesis.coordinator) == self._coordinator

    def _known(self, link: Link) -> None:
        position = link.entry.position
        if self.view.hashes[position] == link.hash or self.view.genesis is None:
            return
        keys = self.view.coordinator_keys
        if link.entry.run == self.view.run and any(check_signature(link, public) for public in keys):
            self._effects.append(Disputed(position, link.encoded))

    # --- state -------------------------------------------------------------------------------------------

    def _has_state(self, event: HasState) -> None:
        if event.at == self._making:
            self._making = None
            self.at = event.at
            working = self._training is not None
            self._effects.append(Adopt(event.at, working=working, settled=self._settled(event.at)))
        elif event.at != self.at:
            return
        if event.at > 0 and (event.snapshot is not None or self._is_attested(event.at)):
            word = SendAttestation(event.at, event.state, event.snapshot, event.validation)
            self._word = word
            self._effects.append(word)

    def _settled(self, at: int) -> int:
        """The last sequence of this node that is in the state at this position, or came to nothing."""
        fate = self._fate()
        pending = self._outgoing is not None and (fate is None or (fate and self._settled_at > at))
        return self._last_sequence - pending

    def _fate(self) -> bool | None:
        """What became of the outgoing claim; None while it may still be sealed."""
        if self._outgoing is None:
            return None
        claim = self._outgoing.claim
        return self.view.fate_of(claim.node, claim.sequence, claim.plan)

    def _is_attested(self, at: int) -> bool:
        """True for the states that everybody attests: every one, or every so many."""
        return self._count(at) % self._attest_every == 0

    def _count(self, at: int) -> int:
        """How many seals of the path lead to this state."""
        index = self.view.index_of(at)
        return 0 if index is None else index + 1

    def _cannot_fetch(self, event: CannotFetch) -> None:
        """Skip ahead to a saved state that makes the update unnecessary; if there is none, say so."""
        if self._making == event.at and self.view.best_start().at >= event.at:
            self._drop_state()
        else:
            self._effects.append(SendUp(messages.Stuck(at=event.at, blob=event.blob, seconds=event.seconds)))

    def _drop_state(self) -> None:
        """The state at hand is no use: the next step loads a saved one."""
        self._cancel_state()
        self.at, self._word = -1, None

    def _cancel_state(self) -> None:
        if self._making is not None:
            self._making = None
            self._effects.append(CancelState())

    def _unattested(self, at: int) -> bool:
        """True while the log lacks this node's word on the state it has (or its snapshot)."""
        if at != self.at or not self.view.stands(at):
            return False
        known = self.view.attested.get(at, {}).get(self.node)
        wants_save = self.view.stopped is not None and self.view.best_start().at != self.view.at
        return known is None or wants_save

    def _advance(self) -> None:
        if self._finished or self.view.genesis is None or self.recipe is None:
            return
        if not self._prepared:
            self.doing = "fetching the data"
            if not self._preparing:
                self._preparing = True
                self._effects.append(Prepare(self.view.genesis))
            return
        self._advance_state()
        self._advance_training()
        self._advance_claim()
        self._advance_end()

    def _advance_state(self) -> None:
        oldest = self.view.kept_states()[0].at
        if self._making is not None:
            # Blobs from before the oldest kept state may be gone everywhere: do not wait for them.
            if self.view.stands(self._making) and self._making >= oldest:
                return
            self._cancel_state()
        if self.at < oldest or not self.view.stands(self.at):
            saved = self.view.best_start()
            self._stop_training()  # What it has trained stands on a state that is no use any more.
            self._advance_shards(None)
            self._making, self.at = saved.at, -1
            self.doing = f"loading the state at {saved.at}"
            self._effects.append(Load(saved))
            return
        step = self.view.next_step(self.at)
        self._advance_shards(step)
        if step is not None and step.settled:
            self._making = step.position
            self.doing = f"folding round {step.round}"
            self._effects.append(self._fold(step))

    def _advance_shards(self, step: Step | None) -> None:
        """Make the digests of the next seal that this node was drawn for, until the log has them all."""
        waits = step is not None and not step.settled
        if self._sharding is not None and (step is None or not waits or step.position != self._sharding):
            self._sharding, self._folding = None, None
            self._effects.append(CancelState())
        if step is None or not waits:
            return
        if self._training is None:
            self.doing = f"waiting for the digests of round {step.round}"
        if self._sharding is None and any(self.node in shard.folders for shard in step.shards):
            self._sharding = step.position
            self._effects.append(FoldShards(step))

    def _fold(self, step: Step) -> Fold:
        assert self.recipe is not None
        done, odd = divmod(self._count(step.position), self._attest_every)
        authors = [update.claim.node for update in step.updates]
        evaluator = authors[done % len(authors)] if authors else None
        news = 1 + pairs_since_fold(self.view.path, self.view.index_of(step.position))
        return Fold(
            step=step,
            snapshot=not odd and done % self.recipe.storage.snapshot_every == 0,
            evaluate=not odd
            and not step.pairs
            and done % self.recipe.evaluation.every < news
            and evaluator == self.node,
        )

    # --- training and claiming ---------------------------------------------------------------------------

    def _advance_training(self) -> None:
        view = self.view
        open_work = view.planned.get(self.node, {})
        if self._training is not None and self._training not in open_work and not self._may_go_on(open_work):
            self._stop_training()
        if self._training is not None or self.at < 0 or view.stopped is not None:
            return
        if not open_work:
            if self._making is None and (self.note or view.plan is not None):
                self.doing = self.note or "waiting for the next round"
            return
        if self._current(self._outgoing):
            self.doing = "waiting for the seal"
            return
        planned = open_work[max(open_work)]
        if self.at >= planned.at:
            self._training = planned.position
            self.doing = f"training round {planned.round}"
            self._effects.append(Train(planned))

    def _may_go_on(self, open_work: dict[int, Planned]) -> bool:
        """True for the spare steps after a claim that was accepted: until the next work can begin, which is when the
        new state is here, there is nothing better to do."""
        claim = self._outgoing.claim if self._outgoing is not None else None
        if claim is None or claim.plan != self._training or not self._fate() or self.view.stopped is not None:
            return False
        return not open_work or self.at < open_work[max(open_work)].at

    def _stop_training(self) -> None:
        if self._training is not None:
            self._training = None
            self._effects.append(StopTraining())

    def _current(self, outgoing: Outgoing | None) -> bool:
        """True if this update can still be sealed."""
        return outgoing is not None and self._fate() is None

    def _take_outgoing(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._last_sequence = outgoing.claim.sequence
        self._settled_at = -1
        self._to_coordinator = False
        self._receipts, self._publishing, self._kept = (), False, False
        self._offered_at = -1e9

    def _advance_claim(self) -> None:
        outgoing = self._outgoing
        if outgoing is None or not self._current(outgoing) or not self.connected:
            return
        if self._kept or self._publishing or self._now - self._offered_at < OFFER_AGAIN_S:
            return
        if not self._receipts:
            self._publishing = True
            self._effects.append(Publish(outgoing, self._to_coordinator))
        else:
            self._offered_at = self._now
            self._effects.append(SendUp(messages.Offer(claim=outgoing.signed, receipts=self._receipts)))

    def _published(self, event: Published) -> None:
        self._publishing = False
        if self._outgoing is not None and event.sequence == self._outgoing.claim.sequence:
            self._receipts = event.receipts
            self._offered_at = -1e9

    def _acked(self, ack: messages.ClaimAck) -> None:
        if self._outgoing is None or ack.sequence != self._outgoing.claim.sequence:
            return
        self._kept = ack.kept
        self.why_out = "" if ack.kept else ack.reason
        if ack.retry:
            self._receipts, self._to_coordinator = (), True  # Gather other receipts, in a while.
        elif not ack.kept and self._current(self._outgoing):
            # It will never be kept: do the round's work anew. Spare steps still under way would be counted
            # before it, out of order; the training starts again once they have ended.
            self._outgoing = None
            self._effects += [StopTraining(), StartOver()]

    # --- the end -----------------------------------------------------------------------------------------

    def _advance_end(self) -> None:
        view = self.view
        if view.stopped is None:
            return
        if self.at != view.at or self._making is not None:
            return
        if view.best_start().at == view.at:
            self._finished = True
            self._effects.append(Finish(view.stopped))
        elif not self._has_snapshot():
            self.doing = "saving the final state"
            self._making = self.at
            self._effects.append(SaveSnapshot(self.at))

    def _has_snapshot(self) -> bool:
        return self._word is not None and self._word.at == self.at and self._word.snapshot is not None
