"""Connections to peers: opened once, kept while they are useful, used again.

In flow peers; out flow streams whose other end has proven to be that peer. Invariant: a stream is either
here, idle, or with exactly one caller; idle ones are bounded in number and age.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field

from shoal.base.errors import ChannelClosed
from shoal.base.host import Peer
from shoal.worlds.real.addresses import split_address
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.pipe import Pipe
from shoal.worlds.real.stream import Stream
from shoal.worlds.real.tls import client_context

CONNECT_S = 10.0
_IDLE_S = 45.0  # less than the server's patience, so that it is rarely us who find a closed door
_IDLE_STREAMS = 128


@dataclass(eq=False, slots=True)
class Line:
    """A connection to a peer, and whether we have said there who we are."""

    peer: Peer
    stream: Stream
    used: bool = False
    introduced: bool = False
    keep: bool = True
    idle_since: float = field(default_factory=time.monotonic)


class PeerPool:
    def __init__(self, throttle: Throttle, meter: Meter) -> None:
        self._throttle = throttle
        self._meter = meter
        self._lock = threading.Lock()
        self._idle: list[Line] = []  # in the order in which they fell idle
        self._closed = False

    def take(self, peer: Peer, deadline: float) -> Line:
        """An idle line to `peer`, the most recently used first, else a new one. Raises `ChannelClosed`, or
        `WrongNode` if somebody else answers."""
        while (line := self._pop(peer)) is not None:
            if not line.stream.wait_readable(0.0):
                return line
            line.stream.close()  # the server has closed it meanwhile, or speaks out of turn
        return self.open(peer, deadline)

    def open(self, peer: Peer, deadline: float) -> Line:
        """A new line to `peer`."""
        host, port = split_address(peer.address)
        deadline = min(deadline, time.monotonic() + CONNECT_S)
        try:
            sock = socket.create_connection((host, port), timeout=_left(deadline))
        except (OSError, ValueError) as error:  # the latter: no host's name
            raise ChannelClosed(f"{peer.address} does not answer: {error}") from error
        try:
            pipe = Pipe(sock, client_context(peer.node), server_side=False)
        except OSError:
            sock.close()
            raise
        try:
            pipe.handshake(deadline)
        except OSError:
            pipe.close()
            raise
        return Line(peer, Stream(pipe, self._throttle, self._meter))

    def give(self, line: Line) -> None:
        """Hand back a line that is in between messages."""
        line.used, line.idle_since = True, time.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.append(line)
                stale = self._drop_stale()
            else:
                stale = [line]
        for old in stale:
            old.stream.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for line in idle:
            line.stream.close()

    def _pop(self, peer: Peer) -> Line | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].peer == peer:
                    return self._idle.pop(index)
        return None

    def _drop_stale(self) -> list[Line]:
        oldest = time.monotonic() - _IDLE_S
        excess = len(self._idle) - _IDLE_STREAMS
        fresh = [line for line in self._idle[max(0, excess) :] if line.idle_since >= oldest]
        stale = [line for line in self._idle if line not in fresh]
        self._idle = fresh
        return stale


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ChannelClosed("the deadline has passed")
    return left_s
