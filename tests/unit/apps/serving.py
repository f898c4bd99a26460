"""A whole coordinator in a thread of this process: real host, real store, real HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.apps.api.client import ApiClient
from shoal.apps.home import Home, read_secret
from shoal.apps.serve import ServeOptions, serve_until

READY_S = 60


@dataclass(frozen=True)
class Serving:
    home: Home
    address: str
    token: str
    welcome: tuple[str, ...]

    def client(self) -> ApiClient:
        return ApiClient(self.address, self.token)


class _Coordinator(threading.Thread):
    def __init__(self, options: ServeOptions) -> None:
        super().__init__(name="coordinator", daemon=True)
        self.lines: list[str] = []
        self.settled = threading.Event()
        self.failure: BaseException | None = None
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self.settled.set()

    async def _serve(self) -> None:
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        await serve_until(self._options, self._asked, self._say)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if line == "ready":
            self.settled.set()

    def stop(self) -> None:
        if self._loop is not None and self._asked is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._asked.set)
        self.join(READY_S)
        assert not self.is_alive()


@contextmanager
def serving(folder: Path, **options: object) -> Iterator[Serving]:
    """A coordinator on free ports, from `ready` to its clean end; what it fails with is raised here."""
    home = Home(folder)
    ports = {"port": 0, "control_port": 0, "blob_port": 0}
    thread = _Coordinator(ServeOptions(home=home, **{**ports, **options}))  # type: ignore[arg-type]
    thread.start()
    try:
        assert thread.settled.wait(READY_S)
        if thread.failure is None:
            address = home.api_address.read_text("utf-8").strip()
            yield Serving(home, address, read_secret(home.admin_token) or "", tuple(thread.lines))
    finally:
        thread.stop()
    if thread.failure is not None:
        raise thread.failure
