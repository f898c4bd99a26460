"""What may be asked of a coordinator: submit a run, stop it, rewind it, let more nodes in.

In flow requests from the API and from `shoal serve` itself; out flow events for the service, runs and
tickets. Invariant: the logic stays in the coordinator's machine; a request is an event posted to it, and is
answered once the log shows its effect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

from shoal.apps.api.diary import Diaries
from shoal.apps.api.models import NodeStatus, RunStatus, RunSummary
from shoal.apps.api.regional import RegionDesk
from shoal.apps.api.sentences import Sentence
from shoal.apps.api.status import Standings, node_status, status, summary
from shoal.apps.home import Home, read_secret, write_secret
from shoal.apps.members import find_member
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.admission import JoinToken, token_hash
from shoal.coordinator.changing import Change, changeable
from shoal.coordinator.events import BanAsked, Event, FundAsked, RevokeAsked, RewindAsked, StopAsked
from shoal.coordinator.founding import Founded, add_token, as_logged, found_with
from shoal.coordinator.served import Run
from shoal.coordinator.service import CoordinatorService
from shoal.planner.matching import MATCHERS
from shoal.planner.pool import Pool
from shoal.runlog.entries import Ban
from shoal.runlog.rules import MOST_FUNDS_MICRO
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.wire.ticket import Ticket, show_ticket
from shoal.worlds.real.locks import at_work

EFFECT_S, LOOK_S = 15.0, 0.02
MIN_PREFIX = 4


class Desk:
    """`expires_s` is how long the tickets of new runs admit nodes, None for ever; `matching` is the rule by which
    machines of the pool are given to runs."""

    def __init__(
        self,
        service: CoordinatorService,
        home: Home,
        *,
        expires_s: float | None = None,
        matching: str = "stable",
    ) -> None:
        self.service = service
        self.pool = Pool(MATCHERS[matching])
        self.regions = RegionDesk(service)
        self.diaries = Diaries(service)
        self._home = home
        self._expires_s = expires_s
        self._founding = asyncio.Lock()

    @property
    def root(self) -> Path:
        """The folder of the coordinator's home."""
        return self._home.root

    # --- looking -----------------------------------------------------------------------------------------

    def find(self, name: str) -> tuple[RunId, Run]:
        """The run with this id, or whose id alone begins so. Raises SH-API-02, or why the run is not served."""
        runs = self.service.runs
        found = [run for run in sorted(runs) if run == name]
        if not found and len(name) >= MIN_PREFIX:
            found = [run for run in sorted(runs) if run.startswith(name)]
        broken = [
            run for run in sorted(self.service.broken) if len(name) >= MIN_PREFIX and run.startswith(name)
        ]
        if not found and len(broken) == 1:
            raise self.service.broken[broken[0]]
        if not found and len(name) >= MIN_PREFIX:
            self.refer(name)
        if len(found) != 1:
            what = f"{len(found)} runs begin with" if found else "this coordinator has no run"
            raise ShoalError("SH-API-02", f"{what} {name[:64]!r}", "see which there are: shoal run list")
        return found[0], runs[found[0]]

    def refer(self, prefix: str) -> None:
        """Raises SH-LEAD-02 or SH-LEAD-03 for a run of several coordinators that begins so, and is not served here."""
        elections = self.service.elections
        for run in sorted(elections.contests):
            if run.startswith(prefix) and (error := elections.why_not(run)) is not None:
                raise error

    def summaries(self) -> list[RunSummary]:
        now = self.service.host.clock.now()
        return [
            summary(served.machine, now, served.paused) for _, served in sorted(self.service.runs.items())
        ]

    def node(self, run: RunId, node: NodeId) -> NodeStatus:
        """One member as it stands now."""
        machine = self.service.runs[run].machine
        now = self.service.host.clock.now()
        return node_status(Standings.at(machine, self.diaries.of(run), now), machine.view.members[node])

    def status(self, run: RunId, rounds: int, *, with_nodes: bool = True) -> RunStatus:
        now = self.service.host.clock.now()
        served = self.service.runs[run]
        return status(served.machine, self.diaries.of(run), now, rounds, served.paused, with_nodes=with_nodes)

    # --- asking ------------------------------------------------------------------------------------------

    async def submit(self, recipe: Recipe) -> tuple[RunId, str]:
        """Found a run and take it into service; its id and ticket. Raises SH-LEAD-02 where others are to lead it."""
        host, service = self.service.host, self.service
        service.elections.check_listed(recipe.membership.coordinators)

        def found() -> Founded:
            # The coordinator may end before this has: then it is this that is at work in the home.
            with at_work(self._home.coordinator):
                return found_with(service, recipe, expires_s=self._expires_s)

        # One at a time: preparing data is heavy, and the rounds of other runs go on meanwhile.
        async with self._founding:
            founded = await host.work(found)
        await service.open_run(founded.run)
        await host.work(lambda: write_secret(self._home.join_token(founded.run), founded.token))
        return founded.run, self._show(founded.run, founded.token)

    def find_same(self, recipe: Recipe) -> RunId | None:
        """A run of exactly this recipe that is still on."""
        logged = as_logged(recipe)
        for run, served in sorted(self.service.runs.items()):
            view = served.machine.view
            if view.genesis is not None and view.stopped is None and view.genesis.recipe == logged:
                return run
        contests = sorted(self.service.elections.contests.items())
        return next((run for run, contest in contests if contest.recipe == logged), None)

    async def stop(self, run: RunId, reason: str) -> None:
        """End a run; nothing to do if it has ended."""
        view = self.service.runs[run].machine.view
        await self._post(run, StopAsked(reason), lambda: view.stopped is not None)

    async def pause(self, run: RunId, reason: str | None) -> None:
        """Give out no new work, or go on (None). Raises SH-RUN-01 once the run is over."""
        view = self.service.runs[run].machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "submit a new run")
        await self.service.pause(run, reason)
        self._note("run_paused" if reason else "run_resumed", run, reason or "")

    async def change(self, run: RunId, changes: dict[str, Change]) -> None:
        """Change what may be changed while a run is on. Raises SH-RUN-01 or SH-RECIPE-02."""
        served = self.service.runs[run]
        if served.machine.view.stopped is not None:
            raise _not_now(f"the run has ended: {served.machine.view.stopped}", "submit a new run")
        genesis = served.machine.view.genesis
        assert genesis is not None
        first = changeable(recipe_in_log(genesis.recipe))
        standing = {p: v for p, v in changeable(served.machine.recipe).items() if first[p] != v}
        before = served.machine
        await self.service.change(run, {**standing, **changes})
        await self._until(lambda: served.machine is not before)
        said = ", ".join(f"{path} = {value}" for path, value in sorted(changes.items()))
        self._note("run_changed", run, said)

    def _note(self, kind: str, run: RunId, reason: str) -> None:
        words = {"run_paused": "The run is paused.", "run_resumed": "The run goes on."}
        told = Sentence(kind=kind, text=words.get(kind, "The run's parameters changed."), reason=reason)
        self.diaries.of(run).chronicle.note(told, self.service.host.clock.wall_ms())
        self.service.changed.set()

    async def rewind(self, run: RunId, to: int, reason: str) -> None:
        """Go back to an earlier state. Raises SH-RUN-01 where that cannot be."""
        view = self.service.runs[run].machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "submit a new run")
        if not view.path:
            raise _not_now("no round was sealed yet", "there is nothing to undo")
        if to == view.at or not view.may_rewind(to):
            places = [0, *(step.position for step in view.path[:-1])]
            earlier = [position for position in places if view.may_rewind(position)]
            choices = ", ".join(str(position) for position in earlier[-5:])
            raise _not_now(
                f"{to} is not the position of an earlier seal that is kept",
                f"the earliest is {earlier[0]}, and the latest ones {choices}" if earlier else "none is kept",
            )
        await self._post(run, RewindAsked(to, reason), lambda: view.at == to)

    async def fund(self, run: RunId, add_micro: int, reason: str) -> None:
        """Let the run earn so much more than its budget says. Raises SH-RUN-01 where that cannot be."""
        machine = self.service.runs[run].machine
        view = machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "submit a new run")
        if machine.crediting.budget_micro is None:
            raise _not_now(
                "the run has no budget to raise", "it is paid without end; see credit.budget_micro"
            )
        if view.funded_micro + add_micro > MOST_FUNDS_MICRO:
            raise _not_now(f"no run is funded with more than {MOST_FUNDS_MICRO} in all", "add less")
        wanted = view.funded_micro + add_micro
        await self._post(run, FundAsked(add_micro, reason), lambda: view.funded_micro >= wanted)

    async def ban(self, run: RunId, who: str, seconds: float, reason: str) -> Ban:
        """Keep a node out for so long; 0 lets it in again. Raises SH-RUN-01 or SH-CREDIT-02."""
        view = self.service.runs[run].machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "nobody takes part in it any more")
        node, wall_ms = find_member(view, who), self.service.host.clock.wall_ms()
        until_ms = wall_ms + int(seconds * 1000) if seconds else 0
        await self._post(run, BanAsked(node, until_ms, reason), lambda: _said(view, node) == until_ms)
        return view.bans[node][1]

    async def revoke(self, run: RunId, who: str, reason: str) -> NodeId:
        """No key speaks for a node any more, for good. Raises SH-RUN-01 or SH-CREDIT-02."""
        view = self.service.runs[run].machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "nobody takes part in it any more")
        node = find_member(view, who)
        if view.public_of(node) is None:
            raise _not_now(f"the keys of {node[:12]} were revoked before", "there is nothing left to revoke")
        await self._post(run, RevokeAsked(node, reason), lambda: view.public_of(node) is None)
        return node

    async def ticket(
        self, run: RunId, expires_s: float | None, uses: int | None = None, nodes: tuple[str, ...] = ()
    ) -> tuple[str, JoinToken]:
        """Another ticket, beside those already given out; perhaps for few nodes only. Raises SH-CREDIT-02."""
        view = self.service.runs[run].machine.view
        only = tuple(find_member(view, who) for who in nodes)
        secret, token = await self._mint(run, expires_s, uses, only)
        return self._show(run, secret), token

    async def standing_ticket(self, run: RunId) -> str:
        """The run's own ticket, the same after every restart while it is valid; else a new one."""
        path, work = self._home.join_token(run), self.service.host.work
        secret = await work(lambda: read_secret(path))
        if secret is None or not self._admits(run, secret):
            fresh, _ = await self._mint(run, self._expires_s)
            await work(lambda: write_secret(path, fresh))
            secret = fresh
        return self._show(run, secret)

    async def _mint(
        self, run: RunId, expires_s: float | None, uses: int | None = None, nodes: tuple[NodeId, ...] = ()
    ) -> tuple[str, JoinToken]:
        host, store = self.service.host, self.service.store

        def mint() -> tuple[str, JoinToken]:
            wall_ms = host.clock.wall_ms()
            return add_token(
                store,
                run,
                wall_ms=wall_ms,
                random=host.random,
                expires_s=expires_s,
                uses=uses,
                nodes=nodes,
            )

        secret, token = await host.work(mint)
        served = self.service.runs[run]
        served.tokens = (*served.tokens, token)
        return secret, token

    def _admits(self, run: RunId, secret: str) -> bool:
        hashed, now_ms = token_hash(secret), self.service.host.clock.wall_ms()
        return any(
            token.sha256 == hashed and (token.expires_ms is None or token.expires_ms > now_ms)
            for token in self.service.runs[run].tokens
        )

    def _show(self, run: RunId, secret: str) -> str:
        service = self.service
        contest = service.elections.contests.get(run)
        addresses = contest.coordinators if contest is not None else service.addresses
        return show_ticket(Ticket(service.identity.node, addresses, run, secret))

    async def _until(self, done: Callable[[], bool]) -> None:
        clock = self.service.host.clock
        deadline = clock.now() + EFFECT_S
        while not done():
            if clock.now() > deadline:
                raise _not_now("the coordinator has not taken the request yet", "look again: shoal run show")
            await clock.sleep(LOOK_S)

    async def _post(self, run: RunId, event: Event, done: Callable[[], bool]) -> None:
        """Hand an event over; back once its effect is in the log, for good."""
        await self.service.post(run, event)
        clock, served = self.service.host.clock, self.service.runs[run]
        deadline, needed = clock.now() + EFFECT_S, math.inf
        while served.written < needed:
            if needed == math.inf and done():
                needed = served.machine.view.length
                continue
            if clock.now() > deadline:
                raise _not_now("the coordinator has not taken the request yet", "look again: shoal run show")
            await clock.sleep(LOOK_S)


def _said(view: RunView, node: NodeId) -> int | None:
    """Until when the log's last word on this node bans it."""
    position, ban = view.bans.get(node, (-1, None))
    return ban.until_ms if ban is not None and position >= 0 else None


def _not_now(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-RUN-01", cause, next_step)
