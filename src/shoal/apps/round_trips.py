"""How far other lent machines are, and a door at which they find out how far this one is.

In flow addresses of others; out flow the times that connections to them take. Invariant: nothing is said on such a
connection, either way; measuring happens beside everything else, and one machine is measured no more often than every
`AGAIN_S`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping

from shoal.apps.ports import open_port
from shoal.base.errors import ChannelClosed
from shoal.worlds.real.addresses import split_address

AGAIN_S = 15.0
TIMEOUT_S = 3.0
TRIES = 2
UNREACHED = 0.0
MOST = 256


def measured_trip_s(address: str) -> float:
    """The quickest of a few connections; `UNREACHED` if there is none."""
    with contextlib.suppress(
        OSError, ValueError, ChannelClosed
    ):  # ValueError: of a name that no host can have.
        host, port = split_address(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return min(_connect_s(found[0], found[4]) for _ in range(TRIES))
    return UNREACHED


def _connect_s(family: int, where: tuple[object, ...]) -> float:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        began = time.perf_counter()
        sock.connect(where)
        return time.perf_counter() - began


class Prober:
    """Measures the machines that it was told of last, in a thread of its own."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        self._found: dict[str, tuple[float, float]] = {}
        self._news = threading.Event()
        threading.Thread(target=self._measure, name="measure round trips", daemon=True).start()

    def look_at(self, targets: Mapping[str, str]) -> None:
        """Node and address of each."""
        self._targets = dict(targets)
        self._news.set()

    def found(self) -> dict[str, float]:
        """What is known of those it was told of, in seconds."""
        known = {node: self._found.get(node) for node in self._targets}
        return {node: round(said[0], 6) for node, said in known.items() if said}

    def _measure(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            for node, address in list(self._targets.items()):
                before = self._found.get(node)
                if before is None or time.monotonic() - before[1] > AGAIN_S:
                    self._found.pop(node, None)
                    self._found[node] = (measured_trip_s(address), time.monotonic())
            while len(self._found) > MOST:
                del self._found[next(iter(self._found))]


class Door:
    """Takes connections where this machine would be a hub, while it is none, and ends each at once."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Raises SH-SERVE-01 or SH-SERVE-02."""
        if self._socket is None:
            self._socket = open_port(self._host, self._port)
            threading.Thread(target=_answer, args=(self._socket,), name="door", daemon=True).start()

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # Or the thread in accept() would keep it open.
            self._socket.close()
            self._socket = None


def _answer(door: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            door.accept()[0].close()
