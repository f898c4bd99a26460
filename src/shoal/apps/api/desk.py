"""What may be asked of a coordinator: submit a run, stop it, rewind it, let more nodes in.

In flow requests from the API and from `shoal serve` itself; out flow events for the service, runs and
tickets. Invariant: the logic stays in the coordinator's machine; a request is an event posted to it, and is
answered once the log shows its effect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from shoal.apps.api.diary import Diaries
from shoal.apps.api.models import RunStatus, RunSummary
from shoal.apps.api.status import status, summary
from shoal.apps.home import Home, read_secret, write_secret
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.admission import JoinToken, token_hash
from shoal.coordinator.events import Event, RewindAsked, StopAsked
from shoal.coordinator.founding import Founded, add_token, as_logged, found_run
from shoal.coordinator.service import CoordinatorService, Run
from shoal.strategy.recipe import Recipe
from shoal.wire.ticket import Ticket, show_ticket

EFFECT_S, LOOK_S = 15.0, 0.02
MIN_PREFIX = 4


class Desk:
    """`expires_s` is how long the tickets of new runs admit nodes; None for ever."""

    def __init__(self, service: CoordinatorService, home: Home, *, expires_s: float | None = None) -> None:
        self.service = service
        self.diaries = Diaries(service)
        self._home = home
        self._expires_s = expires_s
        self._founding = asyncio.Lock()

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
        if len(found) != 1:
            what = f"{len(found)} runs begin with" if found else "this coordinator has no run"
            raise ShoalError("SH-API-02", f"{what} {name[:64]!r}", "see which there are: shoal run list")
        return found[0], runs[found[0]]

    def summaries(self) -> list[RunSummary]:
        now = self.service.host.clock.now()
        return [summary(served.machine, now) for _, served in sorted(self.service.runs.items())]

    def status(self, run: RunId, rounds: int) -> RunStatus:
        now = self.service.host.clock.now()
        return status(self.service.runs[run].machine, self.diaries.of(run), now, rounds)

    # --- asking ------------------------------------------------------------------------------------------

    async def submit(self, recipe: Recipe) -> tuple[RunId, str]:
        """Found a run and take it into service; its id and ticket."""
        host, service = self.service.host, self.service

        def found() -> Founded:
            return found_run(
                recipe,
                identity=service.identity,
                store=service.store,
                blobs=service.blob_store,
                wall_ms=host.clock.wall_ms(),
                random=host.random,
                expires_s=self._expires_s,
            )

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
        return None

    async def stop(self, run: RunId, reason: str) -> None:
        """End a run; nothing to do if it has ended."""
        view = self.service.runs[run].machine.view
        await self._post(run, StopAsked(reason), lambda: view.stopped is not None)

    async def rewind(self, run: RunId, to: int, reason: str) -> None:
        """Go back to an earlier state. Raises SH-RUN-01 where that cannot be."""
        view = self.service.runs[run].machine.view
        if view.stopped is not None:
            raise _not_now(f"the run has ended: {view.stopped}", "submit a new run")
        if not view.path:
            raise _not_now("no round was sealed yet", "there is nothing to undo")
        if to == view.at or not view.may_rewind(to):
            places = [0, *(step.position for step in view.path[:-1])]
            earlier = [position for position in places if view.may_rewind(position)][-5:]
            choices = ", ".join(str(position) for position in earlier)
            raise _not_now(
                f"{to} is not the position of an earlier seal that is kept", f"the latest ones: {choices}"
            )
        await self._post(run, RewindAsked(to, reason), lambda: view.at == to)

    async def ticket(self, run: RunId, expires_s: float | None) -> tuple[str, JoinToken]:
        """Another ticket, beside those already given out."""
        secret, token = await self._mint(run, expires_s)
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

    async def _mint(self, run: RunId, expires_s: float | None) -> tuple[str, JoinToken]:
        host, store = self.service.host, self.service.store

        def mint() -> tuple[str, JoinToken]:
            wall_ms = host.clock.wall_ms()
            return add_token(store, run, wall_ms=wall_ms, random=host.random, expires_s=expires_s)

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
        return show_ticket(Ticket(service.identity.node, (service.address,), run, secret))

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


def _not_now(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-RUN-01", cause, next_step)
