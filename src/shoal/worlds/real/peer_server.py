"""The door for bulk: takes peers' connections and gives each a thread of its own.

In flow TCP connections; out flow sessions. Invariant: there are never more connections than the limits say,
and one peer's slowness or nonsense costs the others nothing; when the house is full, whoever has waited longest
without asking for anything leaves, and after those whoever has been idle longest.

Threads that wait for their sockets: measured as fast as the best event-loop server tried (aiohttp on uvloop),
without taking the event loop's time, which belongs to control.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from shoal.base.errors import ChannelClosed
from shoal.base.host import Resources
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import cannot_listen
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.peer_session import ServerLimits, Session
from shoal.worlds.real.pipe import Pipe
from shoal.worlds.real.stream import Stream
from shoal.worlds.real.tls import server_context

log = logging.getLogger(__name__)

_BACKLOG = 128
_POLL_S = 0.25
_CLOSE_S = 5.0


class PeerServer:
    """Serves `resources` from `start` to `close`."""

    def __init__(
        self,
        identity: Identity,
        resources: Resources,
        throttle: Throttle,
        meter: Meter,
        limits: ServerLimits,
    ) -> None:
        self._node = identity.node
        self._context = server_context(identity)
        self._resources = resources
        self._throttle = throttle
        self._meter = meter
        self._limits = limits
        self._lock = threading.Lock()
        self._sessions: dict[Session, str] = {}
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()
        self._listener: socket.socket | None = None

    def start(self, bind: str, port: int) -> int:
        """Open the port (0: any) and begin; the port. Raises SH-SERVE-01 or SH-SERVE-02."""
        try:
            family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise cannot_listen(bind, port, error) from error
        listener.settimeout(_POLL_S)
        self._listener = listener
        self._spawn(lambda: self._accept(listener), "shoal-peer-accept")
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Stop accepting, break every connection, and wait briefly for the threads."""
        self._closing.set()
        if self._listener:
            with suppress(OSError):  # wakes the accepting thread where the system allows it
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            sessions, threads = list(self._sessions), list(self._threads)
        for session in sessions:
            session.stream.abort()
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def connections(self) -> int:
        """How many peers are connected now."""
        with self._lock:
            return len(self._sessions)

    def _spawn(self, job: Callable[[], None], name: str) -> None:
        def body() -> None:
            try:
                job()
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=body, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                sock, remote = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                # Out of file handles, or closing; do not spin.
                self._closing.wait(_POLL_S)
                continue
            self._welcome(sock, str(remote[0]))

    def _welcome(self, sock: socket.socket, remote: str) -> None:
        try:
            pipe = Pipe(sock, self._context, server_side=True)
        except OSError:
            sock.close()
            return
        stream = Stream(pipe, self._throttle, self._meter)
        session = Session(stream, self._resources, self._node, self._throttle, self._limits)
        if not self._admit(session, remote):
            stream.close()
            return
        self._spawn(lambda: self._serve(session, pipe), f"shoal-peer-{remote}")

    def _admit(self, session: Session, remote: str) -> bool:
        """Count the session in, if need be in place of one that can best be done without."""
        with self._lock:
            if self._closing.is_set():
                return False
            full = len(self._sessions) >= self._limits.connections
            crowded = Counter(self._sessions.values())[remote] >= self._limits.connections_per_remote
            if full or crowded:
                rivals = [s for s, r in self._sessions.items() if r == remote or not crowded]
                leaver = _spare(rivals)
                if leaver is None:
                    log.warning("peer_connection_refused", extra={"remote": remote})
                    return False
                del self._sessions[leaver]
                leaver.stream.abort()
            self._sessions[session] = remote
            return True

    def _serve(self, session: Session, pipe: Pipe) -> None:
        try:
            pipe.handshake(time.monotonic() + self._limits.handshake_s)
            session.run()
        except (ChannelClosed, OSError, ValueError) as error:
            log.debug("peer_connection_ended", extra={"reason": str(error)})
        finally:
            with self._lock:
                self._sessions.pop(session, None)
            with suppress(OSError):
                session.stream.close()


def _spare(sessions: list[Session]) -> Session | None:
    """Who is idle: first of those never heard, whose handshake or head may be meant to last, and the oldest of them."""
    idle = [(s.heard, since, s) for s in sessions if (since := s.idle_since) is not None]
    return min(idle, key=lambda each: each[:2])[2] if idle else None
