"""What a healed world must show: progress, agreement, and, of a run that ends, a proper end.

In flow the places and the referee's view; out flows nothing, or `Foul`. Invariant: only honest machines are asked,
and what is asked of them does not depend on what the liars among them do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.service import CoordinatorService
from shoal.node.service import NodeService
from shoal.replica.blobs import BlobStore
from shoal.replica.state import State, decode_state, state_hash
from shoal.wire.identity import Identity
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.referee import Foul, Referee
from shoal.worlds.simulated.scenario import Machine

HEAL_S = 240.0
ROUNDS_AFTER_HEALING = 2


@dataclass(slots=True)
class Place:
    """A machine with its disk, through all its incarnations."""

    machine: Machine
    identity: Identity
    lie: str = ""
    """The kind of liar that lives here; "" for an honest machine."""
    disk: SimDisk = field(default_factory=SimDisk)
    incarnation: int = 0
    host: SimHost | None = None
    service: CoordinatorService | NodeService | None = None
    task: asyncio.Task[None] | None = None
    leaving: bool = False
    finished: str = ""
    """Why its node is done with the run for good."""
    paused_until: float = 0.0
    """Somebody uses the machine until then: its node may not train."""


def leader_of(coordinators: list[Place]) -> Place:
    """The coordinator that serves the run now, or the first."""
    for place in coordinators:
        alive = place.host is not None and place.host.alive and not place.host.paused
        service = place.service
        if alive and isinstance(service, CoordinatorService) and service.ready.is_set() and service.runs:
            return place
    return coordinators[0]


class Demands:
    """Asked once nothing goes wrong any more."""

    def __init__(
        self,
        loop: SimLoop,
        run: RunId,
        referee: Referee,
        coordinators: list[Place],
        nodes: list[Place],
        close: int = 2,
    ) -> None:
        self._loop = loop
        self._run = run
        self._referee = referee
        self._coordinators, self._nodes = coordinators, nodes
        self._honest = [place for place in self._nodes if not place.lie]
        self._close = close
        """How many seals behind is still with everybody else; where nobody is waited for, there are many."""

    @property
    def _coordinator(self) -> Place:
        """The one that leads; any, while nobody does."""
        return leader_of(self._coordinators)

    async def progress(self) -> None:
        """Some more rounds with honest work in them, and then a moment at which everyone is on the same state."""
        goal = self._referee.honest_rounds + ROUNDS_AFTER_HEALING
        await self._until(
            lambda: self._referee.honest_rounds >= goal and self._all_caught_up(),
            f"not everybody came to round {goal} after healing",
        )
        self._check_states()
        await self._until(self._has_snapshot, "the leader does not have the saved state")
        self._check_snapshot()

    async def end(self) -> None:
        """The run stops, its final state is saved, and every honest node is done with it. (If liars alone were in
        it when it stopped, nobody is left whose word could save it.)"""
        await self._until(
            lambda: (
                all(place.finished for place in self._honest)
                and (self._is_over() or all(place.finished == "refused" for place in self._honest))
            ),
            "the run did not end after healing",
        )
        if lost := self._referee.unsettled():
            raise Foul(f"the run ended with acknowledged claims that nothing settled: {sorted(lost)}")
        self._check_states()
        await self._until(self._has_snapshot, "the leader does not have the saved state")
        final = state_hash(self._check_snapshot())
        for place in self._honest:
            service = place.service
            if place.finished == "refused" or not isinstance(service, NodeService):
                continue
            if service.state is None or state_hash(service.state) != final:
                raise Foul(f"{place.machine.name} ended with another state than the one that was saved")

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = self._loop.time() + HEAL_S
        while not holds():
            if self._loop.time() > deadline:
                raise Foul(f"{otherwise}: {self._situation()}")
            self._raise_failures()
            await asyncio.sleep(0.25)

    def _is_over(self) -> bool:
        service = self._coordinator.service
        run = service.runs.get(self._run) if isinstance(service, CoordinatorService) else None
        return run is not None and run.machine.finished

    def _all_caught_up(self) -> bool:
        """True if every honest node stands at one of the last seals and every older claim is settled."""
        services = [p.service for p in self._honest if isinstance(p.service, NodeService)]
        path, close = self._referee.view.path, self._close
        recent = {step.position for step in path[-close:]} | ({0} if len(path) < close else set())
        caught_up = all(service.machine.at in recent for service in services)
        return caught_up and not self._referee.unsettled() - self._pending()

    def _pending(self) -> set[tuple[NodeId, int]]:
        """Claims that the open round holds: they will be settled by its seal."""
        newest: dict[NodeId, int] = {}
        for node, sequence in self._referee.acknowledged:
            newest[node] = max(sequence, newest.get(node, -1))
        return set(newest.items())

    def _raise_failures(self) -> None:
        for place in (*self._coordinators, *self._honest):
            if place.task is not None and place.task.done() and not place.task.cancelled():
                error = place.task.exception()
                if error is not None:
                    raise error

    def _situation(self) -> str:
        service = self._coordinator.service
        waiting = ""
        if isinstance(service, CoordinatorService) and self._run in service.runs:
            waiting = service.runs[self._run].machine.waiting_for
        doing = {
            place.machine.name: (
                place.lie,
                place.service.machine.at,
                place.finished or place.service.machine.doing,
            )
            for place in self._nodes
            if isinstance(place.service, NodeService)
        }
        view = self._referee.view
        return f"coordinator waits for {waiting}; nodes {doing}; at {view.at}, stopped: {view.stopped}"

    def _check_states(self) -> None:
        """Whoever stands at one place has one state, and it is the one that was attested."""
        states: dict[int, str] = {}
        for place in self._honest:
            service = place.service
            if not isinstance(service, NodeService) or service.state is None or service.machine.at < 0:
                continue
            hashed, at = state_hash(service.state), service.machine.at
            if states.setdefault(at, hashed) != hashed:
                raise Foul(f"{place.machine.name} has another state at {at}")
            known = {state for (position, _), state in self._referee.states.items() if position == at}
            if known and hashed not in known:
                raise Foul(f"{place.machine.name} holds a state at {at} that it did not attest")
        self._loop.trace("end", self._referee.view.head.hash, sorted(states.items()))

    def _blobs(self) -> BlobStore:
        return BlobStore(SubDisk(self._coordinator.disk, f"runs/{self._run}"), lambda point: None)

    def _has_snapshot(self) -> bool:
        """One that has just taken over has to fetch it. Alone, a coordinator never lets go of it."""
        return len(self._coordinators) == 1 or self._blobs().has(self._referee.view.best_start().blob)

    def _check_snapshot(self) -> State:
        """The latest saved state is with the coordinator, and is what the log says."""
        view = self._referee.view
        saved, blobs = view.best_start(), self._blobs()
        assert view.genesis is not None
        try:
            state = decode_state(blobs.get(saved.blob), view.genesis.layout)
        except (FileNotFoundError, ShoalError) as error:
            raise Foul(f"the saved state at {saved.at} is gone: {error}") from error
        if state_hash(state) != saved.state:
            raise Foul(f"the saved state at {saved.at} is not the one in the log")
        return state
