"""A coroutine in a thread of its own, for programs that are not asynchronous.

In flows a coroutine; out flows its result or its error. Invariant: the thread ends with the coroutine, and an
error inside is raised to whoever asks for the result, once unwrapped from its task group.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from shoal.base.errors import ShoalError
from shoal.worlds.real import loop

T = TypeVar("T")


class Background(Generic[T]):
    def __init__(
        self, name: str, main: Callable[[], Coroutine[Any, Any, T]], ended: Callable[[], None]
    ) -> None:
        """Start `main()`; `ended` is called in its thread once it is over, however that came."""
        self._main = main
        self._ended = ended
        self._result: Future[T] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            self._result.set_result(loop.run(self._noticed()))
        except BaseException as error:  # It is the asker's to deal with, whatever it is.
            self._result.set_exception(_innermost(error))
        finally:
            self._started.set()
            self._ended()

    async def _noticed(self) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        return await self._main()

    def call(self, function: Callable[[], object]) -> None:
        """Have `function` called in the coroutine's loop; nothing happens if that is over."""
        if self._loop is not None and not self._result.done():
            self._loop.call_soon_threadsafe(function)

    def cancel(self) -> None:
        if self._task is not None:
            self.call(self._task.cancel)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the coroutine is over, whatever came of it; False if that took longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def over(self) -> bool:
        return self._result.done()

    def result(self, timeout_s: float | None = None) -> T:
        """What the coroutine returned, or its error. Raises `TimeoutError`."""
        return self._result.result(timeout_s)


def _innermost(error: BaseException) -> BaseException:
    """The `ShoalError` inside a task group's error, or the first error there."""
    while isinstance(error, BaseExceptionGroup):
        known = [e for e in error.exceptions if isinstance(e, ShoalError | BaseExceptionGroup)]
        error = (known or list(error.exceptions))[0]
    return error
