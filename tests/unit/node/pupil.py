"""A node's machine with a clerk who writes the coordinator's log for it."""

from __future__ import annotations

from typing import Any, TypeVar

from runlog.small_log import COORDINATOR, NODES, RUN, Clerk, accepted, make_claim, make_receipt, small_recipe

from shoal.node.events import (
    Connected,
    Effect,
    Event,
    HasState,
    Heard,
    Outgoing,
    Prepared,
    Published,
    SendUp,
    Train,
    Trained,
    TrainingEnded,
)
from shoal.node.machine import NodeMachine
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity
from shoal.wire.messages import Entries
from shoal.wire.signed import sign

T = TypeVar("T")
A, B = NODES[:2]


class Pupil:
    """The machine, what it wanted last, and the log it is being told."""

    def __init__(self, identity: Identity, *others: Identity, recipe: Recipe | None = None) -> None:
        self.identity = identity
        self.now = 100.0
        self.clerk = Clerk()
        self.clerk.found(recipe or small_recipe())
        self.clerk.join(identity, *others)
        self.machine = self._machine(RunView(), None)
        self.effects: list[Effect] = []

    def restart(self, outgoing: Outgoing | None) -> None:
        """A new process with the log that was recorded."""
        view = RunView()
        for link in self.clerk.links[: self.machine.view.length]:
            view.apply(link)
        self.machine = self._machine(view, outgoing)

    def _machine(self, view: RunView, outgoing: Outgoing | None) -> NodeMachine:
        return NodeMachine(
            node=self.identity.node, coordinator=COORDINATOR.node, run=RUN, view=view, outgoing=outgoing
        )

    def step(self, event: Event) -> list[Effect]:
        self.effects = self.machine.step(self.now, event)
        return self.effects

    def hear(self, *entries: bytes) -> list[Effect]:
        return self.step(Heard(Entries(items=entries)))

    def catch_up(self) -> list[Effect]:
        return self.hear(*self.clerk.entries[self.machine.view.length :])

    def wanted(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[T]) -> list[T]:
        return [e.message for e in self.wanted(SendUp) if isinstance(e.message, kind)]

    # --- what usually happens ----------------------------------------------------------------------------

    def settle_in(self) -> None:
        """Connected, the log heard, the data here, the first state loaded."""
        self.step(Connected())
        self.catch_up()
        self.step(Prepared())
        self.has_state(self.machine.view.best_start().at)

    def has_state(self, at: int, state: str = "s", **more: Any) -> list[Effect]:
        values = {"snapshot": None, "validation": None, **more}
        return self.step(HasState(at=at, state=state, **values))

    def outgoing(self, **changes: Any) -> Outgoing:
        claim = make_claim(self.machine.view, self.identity, **changes)
        return Outgoing(claim=claim, signed=sign(self.identity, claim))

    def train(self) -> Outgoing:
        """The training task that was wanted has made its update."""
        made = self.outgoing(sequence=self.machine.next_sequence)
        self.step(Trained(made))
        published = list(self.effects)
        self.step(TrainingEnded(made.claim.plan))
        self.effects = published + self.effects
        return made

    def publish(self, made: Outgoing) -> list[Effect]:
        return self.step(Published(made.claim.sequence, (make_receipt(COORDINATOR, made.claim.blob),)))


def at_work(*others: Any, recipe: Any = None) -> Pupil:
    """A node in the middle of its first round."""
    pupil = Pupil(A, B, *others, recipe=recipe)
    pupil.clerk.plan(A, B)
    pupil.settle_in()
    assert pupil.wanted(Train)
    return pupil


def sealed(pupil: Pupil, *more: Any) -> int:
    """The open round is sealed with the claim the node made."""
    made = pupil.train()
    pupil.publish(made)
    claims = [accepted(pupil.clerk.view, node) for node in (B, *more)]
    own = accepted(pupil.clerk.view, A, sequence=made.claim.sequence)
    position = pupil.clerk.append(
        pupil.clerk.seal_body(**{"accepted": tuple(sorted([own, *claims], key=lambda i: i.claim.payload))})
    )
    pupil.catch_up()
    return position
