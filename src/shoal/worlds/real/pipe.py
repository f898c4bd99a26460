"""TLS over one blocking TCP socket, with deadlines.

In flow plain bytes on one side; out flow the same on the other. Invariant: every call ends by its deadline,
and once one has failed the pipe is of no further use.

OpenSSL reads and writes the caller's memory with the interpreter lock released: two processes on two cores
were measured at 1.0-1.25 GB/s over 1 to 8 connections. Reading the socket in large steps into memory first
was no faster.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress

TCP_INFO_BYTES = 160
TCP_SENT = struct.Struct("=I")
"""In the kernel's `tcp_info`: total_retrans at 100, data_segs_out at 156."""


def _tune(sock: socket.socket) -> None:
    """Set a TCP socket up for bulk over long links.

    Buffer sizes are left to the kernel: setting them by hand switches off its tuning, which goes higher than
    ordinary users may.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # not every kernel has it, and not every user may
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")


class Pipe:
    """One connection, used by one thread at a time; only `abort` may come from another.

    Takes the socket over, unless its making fails. Failures are `OSError` (with `TimeoutError` and
    `ssl.SSLError` below it).
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        _tune(sock)
        self._sock = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        self._armed_s = -1.0

    def handshake(self, deadline: float) -> None:
        """Agree on keys. Raises what the context's own check raises, besides."""
        self._arm(deadline)
        self._sock.do_handshake()

    def receive_into(self, view: memoryview, deadline: float) -> int:
        """Some bytes, at least one, into `view`; 0 if the other side has closed."""
        self._arm(deadline)
        return self._sock.recv_into(view)

    def send(self, view: memoryview, deadline: float) -> None:
        """All of `view`."""
        sent = 0
        while sent < len(view):
            self._arm(deadline)
            sent += self._sock.send(view[sent:])

    def wait_readable(self, timeout_s: float) -> bool:
        """True once there is something to read, or the other side has closed."""
        if self._sock.pending():
            return True
        if not hasattr(select, "poll"):  # Windows
            return bool(select.select([self._sock], [], [], timeout_s)[0])
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def packets(self) -> tuple[int, int]:
        """How many packets with data this connection has sent, and how many of them again, as the kernel counts; none
        where it does not."""
        if not sys.platform.startswith("linux"):
            return 0, 0
        with suppress(OSError):
            told = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            if len(told) >= TCP_INFO_BYTES:
                return TCP_SENT.unpack_from(told, 156)[0], TCP_SENT.unpack_from(told, 100)[0]
        return 0, 0

    def abort(self) -> None:
        """Make whatever another thread does on this pipe fail now."""
        with suppress(OSError):
            # Not SSLSocket's own shutdown: that takes the TLS state from under the thread that uses it.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.close()

    def _arm(self, deadline: float) -> None:
        """Keep the socket's timeout within a tenth of what is left; setting it costs a system call."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline has passed")
        if not 0.9 * self._armed_s <= left_s <= self._armed_s:
            self._sock.settimeout(left_s)
            self._armed_s = left_s
