"""A seeded, virtual-time asyncio loop: no sockets, no threads, no wall clock.

In flow coroutines, each belonging to one incarnation of one host; out flows one fingerprint a seed. Invariant:
the order of everything is a function of the seed: timers tie-break by the seed, hosts interleave by the seed,
and tasks hash by the order of their use, so that sets of them iterate alike in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Owner = tuple[str, int]
"""(host's name, incarnation): a restarted host is a new incarnation."""
OWNER: contextvars.ContextVar[Owner] = contextvars.ContextVar("owner")
WORLD: Owner = ("world", 0)
TICKS = 1_000_000  # Whole microseconds: float drift would let ties depend on history.


class SimError(RuntimeError):
    """The simulated world is stuck, or was used in a way that breaks determinism."""


class _Ordered:
    """Hash by the order in which things are first hashed, which is the same in every process."""

    _next_id = itertools.count(1)
    _order = 0

    def __hash__(self) -> int:
        if not self._order:
            self._order = next(_Ordered._next_id)
        return self._order


class SimTask(_Ordered, asyncio.Task):  # type: ignore[type-arg]
    pass


class SimFuture(_Ordered, asyncio.Future):  # type: ignore[type-arg]
    pass


class SimTimer(asyncio.TimerHandle):
    tie: float
    _when: float
    _scheduled: bool

    def __lt__(self, other: Any) -> bool:
        return bool((self._when, self.tie) < (other._when, other.tie))


class SimLoop(asyncio.BaseEventLoop):
    """Run one simulation with `run(main)`. `kill` and `pause` act on one incarnation of a host."""

    # What BaseEventLoop keeps, of which the type stubs say nothing.
    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, seed: int, *, event_budget: int) -> None:
        super().__init__()
        _Ordered._next_id = itertools.count(1)
        self.rng = random.Random(f"world/{seed}")  # noqa: S311 (a simulation wants a seed)
        self.events = 0
        self.failures: list[dict[str, Any]] = []
        self._schedule_rng = random.Random(f"schedule/{seed}")  # noqa: S311
        self._now_ticks = 0
        self._event_budget = event_budget
        self._live: dict[SimTask, Owner] = {}
        self._dead: set[Owner] = set()
        self._paused: dict[Owner, list[Any]] = {}
        self._graveyard: list[SimTask] = []  # Holding them keeps the collector from running their finally.
        self._digest = hashlib.sha256()
        self._clock_resolution = 0.1 / TICKS
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    # --- what the world uses -----------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_ticks / TICKS

    def trace(self, *fields: object) -> None:
        """Make something part of the fingerprint."""
        self._digest.update(repr((self._now_ticks, fields)).encode())

    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:16]

    def spawn(self, owner: Owner, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task, and whatever it starts, as this incarnation's."""
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        return self.create_task(work, name=name, context=context)

    def kill(self, owner: Owner) -> None:
        """Like kill -9: this incarnation never runs again, not even a finally block."""
        self._dead.add(owner)
        self._paused.pop(owner, None)
        self._graveyard += [task for task, of in self._live.items() if of == owner]

    def pause(self, owner: Owner) -> None:
        """Like SIGSTOP: nothing of this incarnation runs until `resume`."""
        self._paused.setdefault(owner, [])

    def resume(self, owner: Owner) -> None:
        self._ready.extend(self._paused.pop(owner, []))

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end in this world."""
        gc_was_on = gc.isenabled()
        gc.disable()  # A collection at a random moment would run finalisers in a random order.
        try:
            return self.run_until_complete(main)
        finally:
            self._bury()
            self.close()
            if gc_was_on:
                gc.enable()

    def _bury(self) -> None:
        """End every task that is left, the killed ones too, so that none ends later, in another simulation."""
        self._dead.clear()
        for owner in list(self._paused):
            self.resume(owner)
        self._event_budget += 1_000_000
        for _ in range(3):
            left = [task for task in self._live if not task.done()]
            for task in left:
                task.cancel()
            if left:
                super().run_until_complete(self._turn_over())
        for task in list(self._live):
            # Its wake-up was dropped when it was killed, so it cannot be cancelled: throw it away as it is.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError, BaseExceptionGroup):  # A task group wraps what ends it.
                task.get_coro().close()

    async def _turn_over(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    # --- what asyncio uses -------------------------------------------------------------------------------

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def _make_task(self, _: Any, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> SimTask:
        # Task.get_context is 3.12+; the context given, or the current one, is what the task will run in.
        context = kwargs.get("context") or contextvars.copy_context()
        task = SimTask(coro, loop=self, **{**kwargs, "context": context})
        self._live[task] = context.get(OWNER, WORLD)
        task.add_done_callback(self._live.pop)
        return task

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> SimTimer:
        timer = SimTimer(round(when * TICKS) / TICKS, callback, args, self, context)
        timer.tie = self._schedule_rng.random()
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """One turn: jump the clock to the next timer if nothing is ready, then run what is, in seeded order."""
        self._interleave()
        while not self._ready and self._scheduled and not self._stopping:
            self._wake_timers()
            self._interleave()
        if not self._ready and not self._stopping:
            stuck = [f"{owner[0]}:{task.get_name()}" for task, owner in self._live.items()]
            raise SimError(f"deadlock at t={self.time():.6f}: {stuck}")
        self.events += len(self._ready)
        if self.events > self._event_budget:
            raise SimError(f"livelock at t={self.time():.6f}: event budget spent")
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _wake_timers(self) -> None:
        self._now_ticks = max(self._now_ticks, round(self._scheduled[0]._when * TICKS))
        now = self._now_ticks / TICKS
        while self._scheduled and self._scheduled[0]._when <= now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)

    def _interleave(self) -> None:
        """Keep FIFO within a host, as asyncio promises; mix the hosts by the seed."""
        if len(self._ready) < 2:
            if not self._ready or not (self._dead or self._paused):
                return
            owner = self._ready[0]._context.get(OWNER, WORLD)
            if owner not in self._dead and owner not in self._paused:
                return
        lanes: dict[Owner, deque[Any]] = {}
        for handle in self._ready:
            lanes.setdefault(handle._context.get(OWNER, WORLD), deque()).append(handle)
        for owner in list(lanes):
            if owner in self._dead:
                del lanes[owner]
            elif owner in self._paused:
                self._paused[owner] += lanes.pop(owner)
        order = [owner for owner, lane in lanes.items() for _ in lane]
        if len(lanes) > 1:
            self._schedule_rng.shuffle(order)
        self._ready = deque(lanes[owner].popleft() for owner in order)


def call_later(loop: SimLoop, delay_s: float, callback: Callable[[], None]) -> None:
    """Do something as the world, whoever asks for it: a message in flight outlives its sender."""
    context = contextvars.Context()
    loop.call_at(loop.time() + delay_s, callback, context=context)
