"""A coordinator's machine at a desk: nodes are pens, time is a number, and the log is what it appended."""

from __future__ import annotations

from typing import Any, TypeVar

from runlog.small_log import COORDINATOR, Clerk, blob_id, make_attestation, make_offer, small_recipe, state_id

from shoal.base.ids import BlobId
from shoal.coordinator.events import (
    Append,
    Arrived,
    BlobFetched,
    Effect,
    Event,
    Instant,
    Keep,
    Said,
    Send,
    Tell,
    Ticked,
)
from shoal.coordinator.machine import CoordinatorMachine
from shoal.credit.crediting import Crediting
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Body
from shoal.runlog.view import RunView, verify_log
from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity
from shoal.wire.messages import Attest, ClaimAck, Heartbeat, Message, Offer

T = TypeVar("T")


class Desk:
    """Carries out nothing; remembers what the machine wanted."""

    identity = COORDINATOR

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or small_recipe()
        clerk = Clerk()
        clerk.found(self.recipe)
        self.entries = clerk.entries
        self.kept: dict[str, bytes] = {}
        self.now = 50.0
        self.effects: list[Effect] = []
        self.machine = self._machine()

    def _machine(self) -> CoordinatorMachine:
        crediting = Crediting(self.recipe.credit)
        _, finding = verify_log(self.entries, follower=crediting)
        assert finding is None
        return CoordinatorMachine(
            identity=self.identity,
            crediting=crediting,
            recipe=self.recipe,
            kept=self.kept,
            own_address="coordinator:1",
            instant=self.instant,
        )

    @property
    def instant(self) -> Instant:
        return Instant(self.now, 1_000_000 + int(self.now * 1000))

    @property
    def view(self) -> RunView:
        return self.machine.view

    def restart(self) -> None:
        """Kill the coordinator and start it from its log and its kept claims."""
        self.machine = self._machine()

    def step(self, event: Event) -> list[Effect]:
        self.effects = self.machine.step(self.instant, event)
        for effect in self.effects:
            match effect:
                case Append():
                    assert effect.position == len(self.entries), "entries are appended in order"
                    self.entries.append(effect.encoded)
                case Keep():
                    self.kept[effect.key] = effect.value
        return self.effects

    # --- what nodes do -----------------------------------------------------------------------------------

    def arrive(self, *nodes: Identity, address: str = "h:1") -> None:
        for node in nodes:
            self.step(Arrived(node=node.node, public=node.public, name="n", address=address, length=0))

    def say(self, node: Identity, message: Message) -> list[Effect]:
        return self.step(Said(node.node, message))

    def beat(self, *nodes: Identity, at: int | None = None) -> None:
        """A sign of life of nodes that have the current state."""
        for node in nodes:
            here = self.view.at if at is None else at
            self.say(node, Heartbeat(at=here, length=self.view.length, peers=0, doing=""))

    def join(self, *nodes: Identity) -> None:
        """Everyone arrives, then everyone is ready, so that the first plan has all of them."""
        self.arrive(*nodes)
        self.beat(*nodes)

    def offer(self, node: Identity, offer: Offer | None = None, /, **changes: Any) -> ClaimAck:
        self.say(node, offer or make_offer(self.view, node, **changes))
        return self.acks(node)[-1]

    def attest(self, node: Identity, state: str, /, **changes: Any) -> list[Effect]:
        word = make_attestation(self.view, node, self.view.at, state, **changes)
        return self.say(node, Attest(attestation=word))

    def tick(self, seconds: float = 0.0) -> list[Effect]:
        self.now += seconds
        return self.step(Ticked())

    def seal_round(self, *nodes: Identity) -> int:
        """Everyone delivers: a seal's position."""
        before = self.view.round
        for node in nodes:
            assert self.offer(node).kept
        assert self.view.round == before + 1
        return self.view.at

    # --- what came of it ---------------------------------------------------------------------------------

    def wanted(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def appended(self) -> list[Body]:
        return [read_link(effect.encoded).entry.body for effect in self.wanted(Append)]

    def sent(self, node: Identity, kind: type[T]) -> list[T]:
        return [
            effect.message
            for effect in self.wanted(Send)
            if effect.node == node.node and isinstance(effect.message, kind)
        ]

    def told(self, kind: type[T]) -> list[T]:
        return [effect.message for effect in self.wanted(Tell) if isinstance(effect.message, kind)]

    def acks(self, node: Identity) -> list[ClaimAck]:
        return self.sent(node, ClaimAck)

    def check(self) -> None:
        """What was appended is a log that holds, and the machine reads it alike."""
        view, finding = verify_log(self.entries)
        assert finding is None and view.head == self.view.head


def snapshot_of(state: str) -> Any:
    return blob_id("snapshot", state)


def open_round(*nodes: Identity, recipe: Any = None) -> Desk:
    """A desk with an open round of these nodes."""
    desk = Desk(recipe or small_recipe(membership=members(len(nodes))))
    desk.join(*nodes)
    assert desk.view.plan is not None and set(desk.view.planned) == {node.node for node in nodes}
    return desk


def members(count: int) -> dict[str, Any]:
    return {"min_nodes": count, "lease_s": 6.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}


def stay(desk: Desk, seconds: float, *nodes: Identity) -> None:
    """Time passes while these nodes show signs of life."""
    for _ in range(int(seconds)):
        desk.now += 1
        desk.beat(*nodes)


def sealed_once(*nodes: Identity) -> Desk:
    desk = open_round(*nodes)
    desk.seal_round(*nodes)
    return desk


LIE = BlobId("f" * 64)
"""A blob that is not the state it is named for."""


def fetched(at: int, blob: Any, state: str | None = "s", *, there: bool = True) -> BlobFetched:
    """The coordinator has a blob, and found this state in it."""
    size_bytes, found = (64, state_id(state) if state else None) if there else (None, None)
    return BlobFetched(at=at, blob=blob, size_bytes=size_bytes, state=found)
