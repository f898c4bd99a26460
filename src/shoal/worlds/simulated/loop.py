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
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
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
    owner: Owner


class SimFuture(_Ordered, asyncio.Future):  # type: ignore[type-arg]
    pass


class SimHandle(list[Any]):
    """A call to come: [callback, arguments, context], without a callback once it was cancelled. A list, since one is
    made for every event, and no Python code runs when a list is."""

    __slots__ = ()

    def cancel(self) -> None:
        self[0] = self[1] = None

    def cancelled(self) -> bool:
        return self[0] is None


class SimLoop(asyncio.BaseEventLoop):
    """Run one simulation with `run(main)`. `kill` and `pause` act on one incarnation of a host."""

    # What BaseEventLoop keeps, of which the type stubs say nothing.
    _ready: deque[SimHandle]
    _scheduled: list[tuple[int, float, SimHandle]]
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
        self._dead: set[Owner] = set()
        self._paused: dict[Owner, list[SimHandle]] = {}
        self._graveyard: list[object] = []  # Holding them keeps the collector from running their finally.
        self._digest = hashlib.sha256()
        self._clock_resolution = 0.1 / TICKS
        self.create_future = partial(SimFuture, loop=self)  # type: ignore[method-assign]
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
        self._graveyard += [task for task in self._live() if task.owner == owner]
        self._graveyard += self._paused.pop(owner, [])

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
            left = self._live()
            for task in left:
                task.cancel()
            if left:
                super().run_until_complete(self._turn_over())
        for task in self._live():
            # Its wake-up was dropped when it was killed, so it cannot be cancelled: throw it away as it is.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError, BaseExceptionGroup):  # A task group wraps what ends it.
                task.get_coro().close()

    def _live(self) -> list[SimTask]:
        """The tasks that are not done, from the oldest."""
        return sorted(asyncio.all_tasks(self), key=hash)  # type: ignore[arg-type]

    async def _turn_over(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    # --- what asyncio uses -------------------------------------------------------------------------------

    get_debug = staticmethod(bool)
    """False, said by what is no Python function: every future and every task asks."""

    def create_task(
        self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None
    ) -> SimTask:
        # Task.get_context is 3.12+; the context given, or the current one, is what the task will run in.
        context = contextvars.copy_context() if context is None else context
        task = SimTask(coro, loop=self, name=name, context=context)
        task.owner = context.get(OWNER, WORLD)
        return task

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle((callback, args, contextvars.copy_context() if context is None else context))
        heapq.heappush(self._scheduled, (round(when * TICKS), self._schedule_rng.random(), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle((callback, args, contextvars.copy_context() if context is None else context))
        ticks = round((self._now_ticks / TICKS + delay) * TICKS)
        heapq.heappush(self._scheduled, (ticks, self._schedule_rng.random(), handle))
        return handle

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle((callback, args, contextvars.copy_context() if context is None else context))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _run_once(self) -> None:
        """Turn after turn until the loop is to stop: jump the clock to the next timer if nothing is ready, then run
        what is, in seeded order."""
        dead, paused = self._dead, self._paused
        while True:
            ready = self._ready
            if not ready and self._scheduled and not self._stopping:
                self._wake_timers()
            # One call of a host that goes on, as in most turns, needs no order.
            alone = ready[0][2].get(OWNER, WORLD) if len(ready) == 1 else None
            if alone is None or alone in dead or alone in paused:
                self._interleave()
                ready = self._ready
                if not ready and not self._stopping:
                    if not self._scheduled:
                        stuck = [f"{task.owner[0]}:{task.get_name()}" for task in self._live()]
                        raise SimError(f"deadlock at t={self.time():.6f}: {stuck}")
                    continue
            self.events += len(ready)
            if self.events > self._event_budget:
                raise SimError(f"livelock at t={self.time():.6f}: event budget spent")
            for _ in range(len(ready)):
                callback, args, context = ready.popleft()
                if callback is not None:
                    try:
                        context.run(callback, *args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": f"{callback} failed", "exception": error})
            if self._stopping:
                return

    def _wake_timers(self) -> None:
        scheduled = self._scheduled
        now = self._now_ticks = max(self._now_ticks, scheduled[0][0])
        while scheduled and scheduled[0][0] <= now:
            handle = heapq.heappop(scheduled)[2]
            if handle[0] is not None:
                self._ready.append(handle)

    def _interleave(self) -> None:
        """Keep FIFO within a host, as asyncio promises; mix the hosts by the seed."""
        ready = self._ready
        if not ready:
            return
        lanes: dict[Owner, deque[SimHandle]] = {}
        for handle in ready:
            owner = handle[2].get(OWNER, WORLD)
            if owner in lanes:
                lanes[owner].append(handle)
            else:
                lanes[owner] = deque((handle,))
        for owner in list(lanes):
            if owner in self._dead:
                self._graveyard += lanes.pop(owner)
            elif owner in self._paused:
                self._paused[owner] += lanes.pop(owner)
        if len(lanes) <= 1:
            self._ready = next(iter(lanes.values()), deque())
            return
        order = [owner for owner, lane in lanes.items() for _ in lane]
        self._schedule_rng.shuffle(order)
        self._ready = deque([lanes[owner].popleft() for owner in order])


@contextlib.contextmanager
def collected_at_once() -> Iterator[None]:
    """A world that is made and dropped in here is garbage as a whole in the end, and all of it is young: collected
    then, it is looked at once, and what else the process has is not."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_on:
            gc.enable()


def hush() -> None:
    """Trouble that is simulated is no news: asyncio says nothing of killed tasks, and what services warn of is for
    whoever listens, not for a terminal on which a bar moves."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    shoal = logging.getLogger("shoal")
    if not shoal.handlers:
        shoal.addHandler(logging.NullHandler())


def call_later(loop: SimLoop, delay_s: float, callback: Callable[[], None]) -> None:
    """Do something as the world, whoever asks for it: a message in flight outlives its sender."""
    loop.call_later(delay_s, callback, context=contextvars.Context())
