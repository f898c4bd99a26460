"""Chaos: one seed, one catastrophe. Trouble for a while, then heal, then progress demanded.

In flows a seed; out flows a fingerprint, or `Foul`. Invariant: coordinator and nodes are the very services
that run in the real world; only their `Host` is simulated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.coordinator.events import Event, RewindAsked, StopAsked
from shoal.coordinator.leading import Lead
from shoal.coordinator.service import CoordinatorService
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.files import FileLogStore
from shoal.wire.ballots import NO_BALLOT, Ballot
from shoal.worlds.simulated.database import DatabaseHandle, SimDatabase
from shoal.worlds.simulated.demands import Demands, Place, leader_of
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, found_run, identity_of, make_trainer
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.liars import LIARS
from shoal.worlds.simulated.loop import SimLoop, call_later, collected_at_once, hush
from shoal.worlds.simulated.network import Faults, HostDied, SimNetwork
from shoal.worlds.simulated.referee import Foul, Referee
from shoal.worlds.simulated.scenario import Scenario, draw_scenario, with_standbys

EVENT_BUDGET = 200_000
OPERATOR_RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    fingerprint: str
    rounds: int
    events: int
    virtual_s: float
    crashes: int
    takeovers: int
    cpu_s: float = 0.0


def run_seed(seed: int, *, failover: bool = False, kind: str = "") -> Outcome:
    """Run one seed to its end, with coordinators standing by if asked: "shared" or "members" (see `with_standbys`), or
    what the seed draws. Raises `Foul` (or whatever broke)."""
    hush()
    torch.set_num_threads(1)
    began = time.process_time()
    with collected_at_once():
        outcome = _play(seed, failover, kind)
    return replace(outcome, cpu_s=time.process_time() - began)


def _play(seed: int, failover: bool, kind: str) -> Outcome:
    scenario = draw_scenario(seed)
    scenario = with_standbys(scenario, kind) if failover else scenario
    loop = SimLoop(seed, event_budget=EVENT_BUDGET)
    chaos = Chaos(loop, scenario)
    try:
        # A toy has no gradients, so nothing needs to be kept for them: a twentieth of a seed's time.
        with torch.inference_mode(not scenario.torch):
            loop.run(chaos.play())
    except BaseExceptionGroup as group:
        raise _first(group) from group
    if loop.failures:
        failure = loop.failures[0]
        raise Foul(f"unhandled: {failure.get('exception') or failure}")
    return Outcome(
        seed=seed,
        fingerprint=loop.fingerprint(),
        rounds=len(chaos.referee.rounds_sealed),
        events=loop.events,
        virtual_s=loop.time(),
        crashes=chaos.crashes,
        takeovers=chaos.database.changes + chaos.referee.takeovers,
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


class WatchedLog(FileLogStore):
    """The coordinator's log store, with the referee looking on."""

    def __init__(self, host: SimHost, referee: Referee) -> None:
        super().__init__(host.disk, host.reached)
        self._referee = referee

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        super().append(run, position, entry)
        self._referee.appended(position, entry)


class VotedLog(WatchedLog):
    """The same for one of several coordinators that each have their own: the referee hears who takes over."""

    def __init__(self, host: SimHost, referee: Referee) -> None:
        super().__init__(host, referee)
        self._name = host.name
        self.ballot: Callable[[], Ballot] = lambda: NO_BALLOT
        """The one that this coordinator leads, or tries, with."""

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        is_new = position == len(self._referee.entries)
        super().append(run, position, entry)
        if is_new:
            self._referee.final_by[position] = self.ballot()

    def kept(self, run: RunId, prefix: str) -> dict[str, bytes]:
        found = super().kept(run, prefix)
        if prefix == CLAIM_PREFIX:  # Asked for by one that has just won the lead.
            self._referee.took_over(self._name, self.ballot(), self.length(run), set(found))
        return found


class Chaos:
    def __init__(self, loop: SimLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.scenario = scenario
        self.network = SimNetwork(loop)
        self.crashes = 0
        self._rng = loop.rng
        self._calm = False
        self._wiped = 0
        self.run = RunId(f"{scenario.seed:032x}")
        lies = dict(scenario.liars)
        self.places = {
            m.name: Place(m, identity_of(scenario.seed, m.name), lie=lies.get(m.name, ""))
            for m in (scenario.coordinator, *scenario.nodes)
        }
        for (
            machine
        ) in scenario.standbys:  # One key: to nodes they are the same coordinator, at other addresses.
            self.places[machine.name] = Place(machine, self.places["coordinator"].identity)
        self.referee = Referee({})
        for name, place in self.places.items():
            self.referee.watch(name, place.identity.node, lies=bool(place.lie))
        self.referee.by_majority = scenario.by_majority
        self.network.tap = self.referee.frame
        self.database = SimDatabase(loop, self.referee, self.run)

    def _coordinators(self) -> list[Place]:
        return [self.places[machine.name] for machine in self.scenario.coordinators]

    async def play(self) -> None:
        """Found the run, start everyone, make trouble, heal, and demand progress."""
        coordinator = self.places["coordinator"]
        alone = self.scenario.recipe.strategy.seal_rule().shares_fleet
        demands = Demands(
            self.loop,
            self.run,
            self.referee,
            self._coordinators(),
            self._nodes(),
            close=10 if alone else 2,
        )
        shared = self.scenario.standbys and not self.scenario.by_majority
        store = self.database.rows if shared else None
        genesis = found_run(coordinator.disk, coordinator.identity, self.run, self.scenario, store)
        self.referee.appended(0, genesis)
        for place in self._coordinators():
            self._start(place)
        late = "late" in self.scenario.troubles
        for number, place in enumerate(self._nodes()):
            if late and number % 2:
                self._after(self._rng.uniform(0, self.scenario.chaos_s), place)
            else:
                self._start(place)
        if self.scenario.ends == "stop":
            self.loop.call_later(self.scenario.stop_at_s, self._ask_to_stop)
        await self._trouble()
        self._heal()
        await (demands.end() if self.scenario.ends else demands.progress())

    def _nodes(self) -> list[Place]:
        return [self.places[machine.name] for machine in self.scenario.nodes]

    # --- starting and stopping machines --------------------------------------------------------------------

    def _start(self, place: Place) -> None:
        machine = place.machine
        place.incarnation += 1
        place.leaving = False
        host = SimHost(
            self.loop,
            self.network,
            machine.name,
            place.incarnation,
            place.disk,
            node=place.identity.node,
            link=machine.link,
            speed=machine.speed,
            inbound=machine.inbound,
            skew_s=machine.skew_s,
            rate=machine.rate,
        )
        host.on_point = partial(self._dies_at, host)
        place.host = host
        self.loop.trace("start", machine.name)
        work: Awaitable[object]
        if machine in self.scenario.coordinators:
            place.service = self._coordinator_service(place, host)
            work = place.service.serve()
        else:
            place.service = self._node_service(place, host)
            work = place.service.run()
        place.task = self.loop.spawn(host.owner, self._live(place, host, work), machine.name)

    def _coordinator_service(self, place: Place, host: SimHost) -> CoordinatorService:
        if self.scenario.by_majority:
            own = VotedLog(host, self.referee)
            self.referee.came_back(list(own.read(self.run)))
            service = CoordinatorService(host, place.identity, own, standby_of=("coordinator",))
            own.ballot = lambda: next((c.ballot for c in service.elections.contests.values()), NO_BALLOT)
            return service
        if self.scenario.standbys:
            shared = DatabaseHandle(self.database, host.name)
            return CoordinatorService(host, place.identity, shared, Lead(shared, host.name))
        store = WatchedLog(host, self.referee)
        self.referee.restarted(list(store.read(self.run)), set(store.kept(self.run, CLAIM_PREFIX)))
        return CoordinatorService(host, place.identity, store)

    def _node_service(self, place: Place, host: SimHost) -> NodeService:
        invitation = Invitation(
            coordinator=self.places["coordinator"].identity.node,
            addresses=tuple(machine.name for machine in self.scenario.coordinators),
            run=self.run,
            token=TOKEN,
            name=place.machine.name,
        )
        options = NodeOptions(
            step_seconds=self.scenario.step_s,
            give_up_s=1e9,
            may_train=lambda: "in use" if self.loop.time() < place.paused_until else "",
        )
        make = LIARS[place.lie] if place.lie else NodeService
        return make(
            host,
            place.identity,
            invitation,
            lambda recipe, genesis, read: make_trainer(self.scenario, genesis.manifest, read),
            options,
        )

    async def _live(self, place: Place, host: SimHost, work: Awaitable[object]) -> None:
        """One incarnation's life. What it dies of is raised, unless it was killed, is refused, or lies."""
        try:
            reason = str(await work)
        except HostDied:
            return
        except BaseExceptionGroup as group:
            if group.split(HostDied)[1] is None:
                return
            error = _first(group)
            if self._is_deposed(place, error):
                return
            late = isinstance(error, ShoalError) and error.code == "SH-JOIN-08"
            if not place.lie and not (late and self.referee.view.stopped is not None):
                raise
            reason = "refused"
        except ShoalError as error:
            if not self._is_deposed(place, error):
                raise
            return
        call_later(self.loop, 0.0, lambda: self._gone(place, host, reason))

    def _is_deposed(self, place: Place, error: BaseException) -> bool:
        """Whether a coordinator has lost the lead or the database; if so its process ends, and is started again."""
        coded = isinstance(error, ShoalError) and error.code in ("SH-LEAD-01", "SH-LOG-04")
        if not coded or place.machine not in self.scenario.coordinators or place.host is None:
            return False
        host = place.host
        call_later(self.loop, 0.0, lambda: self._end_deposed(place, host))
        return True

    def _end_deposed(self, place: Place, host: SimHost) -> None:
        """Called by nobody's hand: what the process itself had scheduled would die with it."""
        host.die()
        self._after(self._rng.uniform(0.2, 5), place)

    def _gone(self, place: Place, host: SimHost, reason: str) -> None:
        """A node's process is over: it left for a while, or the run has ended for it."""
        host.alive = False
        self.network.drop_host(host)
        self.loop.kill(host.owner)
        if place.leaving:
            place.leaving = False
            self._after(self._rng.uniform(0.1, 5), place)
        else:
            self.loop.trace("finished", place.machine.name, reason)
            place.finished = reason

    def _dies_at(self, host: SimHost, point: str) -> bool:
        if self._calm or self._rng.random() >= self.scenario.point_chance:
            return False
        self.loop.trace("dies", host.name, point)
        self.crashes += 1
        self._after(self._rng.uniform(0.2, 5), self.places[host.name])
        return True

    def _crash(self, place: Place) -> None:
        if place.host is not None and place.host.alive:
            self.loop.trace("crash", place.machine.name)
            self.crashes += 1
            place.host.die()
            self._after(self._rng.uniform(0.2, 10 if self.scenario.standbys else 6), place)

    def _wipe(self, place: Place) -> None:
        """A machine burns down with its disk; somebody new joins in its stead."""
        most = 1 if self.scenario.by_majority else len(self._nodes()) - 1  # A majority must keep its disks.
        if place.host is not None and place.host.alive and self._wiped < most:
            self._wiped += 1
            self._crash(place)
            place.disk = SimDisk()
            place.identity = identity_of(self.scenario.seed, f"{place.machine.name}+{self._wiped}")
            self.referee.watch(place.machine.name, place.identity.node, lies=bool(place.lie))

    def _after(self, delay_s: float, place: Place) -> None:
        """Start a machine (again) in a while."""

        def begin() -> None:
            if not place.finished and (place.host is None or not place.host.alive):
                self._start(place)

        self.loop.call_later(delay_s, begin)

    # --- trouble, healing, progress ------------------------------------------------------------------------

    async def _trouble(self) -> None:
        scenario = self.scenario
        self.network.faults = Faults(
            loss=scenario.loss,
            duplicate=scenario.duplicate,
            reorder=scenario.reorder,
            corrupt=scenario.corrupt,
        )
        end = self.loop.time() + scenario.chaos_s
        while self.loop.time() < end:
            await asyncio.sleep(
                min(self._rng.expovariate(1 / scenario.trouble_every_s), end - self.loop.time() + 0.01)
            )
            self._one_trouble(self._rng.choice(scenario.troubles))

    def _one_trouble(self, kind: str) -> None:
        rng, faults = self._rng, self.network.faults
        place = rng.choice(self._nodes())
        self.loop.trace("trouble", kind, place.machine.name)
        match kind:
            case "crash":
                self._crash(place)
            case "coordinator":
                self._crash(leader_of(self._coordinators()))
            case "stall":
                self._hang(leader_of(self._coordinators()), rng.uniform(2, 10))
            case "database" if self.scenario.by_majority:
                self._isolate(leader_of(self._coordinators()).machine.name, rng.uniform(1, 8))
            case "database":
                name = leader_of(self._coordinators()).machine.name
                self.database.unreachable.add(name)
                self.loop.call_later(rng.uniform(0.5, 8), lambda: self.database.unreachable.discard(name))
            case "hang":
                victim = rng.choice(list(self.places.values()))
                self._hang(victim, rng.uniform(0.5, 8))
            case "cut":
                pair = tuple(rng.sample(list(self.places), 2))
                faults.cut.add((pair[0], pair[1]))
                self.loop.call_later(rng.uniform(0.5, 8), lambda: faults.cut.discard((pair[0], pair[1])))
            case "clog":
                name = rng.choice(list(self.places))
                faults.clogged[name] = rng.uniform(0.2, 3)
                self.loop.call_later(rng.uniform(0.5, 6), lambda: faults.clogged.pop(name, None))
            case "leave":
                self._leave(place)
            case "wipe":
                self._wipe(place)
            case "pause":
                place.paused_until = self.loop.time() + rng.uniform(1, 8)
            case "rewind":
                self._ask_to_rewind()

    def _isolate(self, name: str, seconds: float) -> None:
        """A coordinator with a store of its own is cut off from some of the others, both ways."""
        others = [other for other in self.places if other != name and self._rng.random() < 0.7]
        cuts = {pair for other in others for pair in ((name, other), (other, name))}
        self.network.faults.cut |= cuts
        self.loop.call_later(seconds, lambda: self.network.faults.cut.difference_update(cuts))

    def _hang(self, place: Place, seconds: float) -> None:
        host = place.host
        if host is None or not host.alive or host.paused:
            return
        host.paused = True
        self.loop.pause(host.owner)
        self.loop.call_later(seconds, lambda: self._wake(host))

    def _wake(self, host: SimHost) -> None:
        host.paused = False
        self.loop.resume(host.owner)

    def _leave(self, place: Place) -> None:
        """A node leaves on purpose, and comes back some time later."""
        host, service, task = place.host, place.service, place.task
        if host is None or not host.alive or host.paused or not isinstance(service, NodeService):
            return
        if task is not None and not task.done():
            place.leaving = True
            self.loop.spawn(host.owner, service.leave("enough for today"), "leave")

    # --- the operator --------------------------------------------------------------------------------------

    def _ask_to_stop(self) -> None:
        """Ask, and ask again while the coordinator is down or has forgotten, until the log says so."""
        if self.referee.view.stopped is None:
            self._ask(StopAsked("enough"))
            self.loop.call_later(OPERATOR_RETRY_S, self._ask_to_stop)

    def _ask_to_rewind(self) -> None:
        """Back to where it may go; of a run that is finished, to the beginning, which must be refused."""
        view = self.referee.view
        places = [to for to in (0, *(step.position for step in view.path)) if view.may_rewind(to)]
        if not places:
            return
        self._ask(RewindAsked(self._rng.choice(places or [0]), "the operator wants it"))

    def _ask(self, event: Event) -> None:
        place = leader_of(self._coordinators())
        host, service = place.host, place.service
        if host is not None and host.alive and isinstance(service, CoordinatorService):
            self.loop.spawn(host.owner, service.post(self.run, event), "the operator")

    # --- healing -------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """No more faults; everyone is back."""
        self._calm = True
        faults = self.network.faults
        faults.loss = faults.duplicate = faults.reorder = faults.corrupt = 0.0
        faults.cut.clear()
        faults.clogged.clear()
        self.database.unreachable.clear()
        for place in self.places.values():
            place.paused_until = 0.0
            if place.host is not None and place.host.paused:
                self._wake(place.host)
            if not place.finished and (place.host is None or not place.host.alive):
                self._start(place)
        self.loop.trace("healed")
