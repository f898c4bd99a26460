"""TLS over one TCP socket, with deadlines.

In flow plain bytes on one side; out flow the same on the other. Invariant: every call ends by its deadline,
and once one has failed the pipe is of no further use.

The socket is read and written in large steps, and OpenSSL works in memory: by itself it reads every record of 16 KiB
in two system calls, which took the receiver 0.076 s of processor time for 100 MB where this takes 0.063.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TCP_INFO_BYTES = 160
TCP_SENT = struct.Struct("=I")
"""In the kernel's `tcp_info`: total_retrans at 100, data_segs_out at 156."""
STEP_BYTES = 256 << 10
_TURN = threading.Lock()
"""OpenSSL gives out 16 KiB a call, and the interpreter lock changes hands with each: threads that read at once spend
more time on that than on the bytes. So one reads at a time, what has come for it, and the others wait outside."""
_RAW = memoryview(bytearray(STEP_BYTES))
"""Where bytes lie on their way from the socket to OpenSSL; of whoever has the turn."""


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
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        self._sock = sock
        self._sock.setblocking(False)
        self.received_bytes = 0
        """How much was given out, since the beginning."""

    def handshake(self, deadline: float) -> None:
        """Agree on keys. Raises what the context's own check raises, besides."""
        while True:
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                pass
            finally:
                self._flush(deadline)
            self._wait(deadline)
            with _turn(deadline):
                came = self._feed()
            if came == 0:
                raise ssl.SSLEOFError("closed in the middle of the handshake")

    def receive_into(self, view: memoryview, deadline: float) -> int:
        """Some bytes, at least one, into `view`; 0 if the other side has closed."""
        return self._receive(view, 1, deadline)

    def fill(self, view: memoryview, deadline: float) -> int:
        """All of `view`; how much came, which is less only if the other side has closed."""
        return self._receive(view, len(view), deadline)

    def queue(self, view: memoryview) -> None:
        """Have `view`, which is short, sent together with what is sent next."""
        self._tls.write(view)

    def send(self, view: memoryview, deadline: float) -> None:
        """All of `view`."""
        for start in range(0, len(view), STEP_BYTES):
            self._tls.write(view[start : start + STEP_BYTES])
            self._flush(deadline)

    def wait_readable(self, timeout_s: float) -> bool:
        """True once there is something to read, or the other side has closed."""
        return bool(self._tls.pending() or self._in.pending) or _ready(self._sock, timeout_s, to_write=False)

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

    def _receive(self, view: memoryview, least: int, deadline: float) -> int:
        done, open_ = 0, True
        while open_ and done < least:
            with _turn(deadline):
                done, open_ = self._drain(view, done, least)
            if self._out.pending:  # The other side wants new keys, say.
                self._flush(deadline)
            if open_ and done < least:
                self._wait(deadline)
        return done

    def _drain(self, view: memoryview, done: int, least: int) -> tuple[int, bool]:
        """Read what has come, until so much is in `view`; how much is, and whether more may come."""
        read, size, before = self._tls.read, len(view), done
        try:
            while done < least:
                try:
                    got = read(size - done, view[done:])
                except ssl.SSLWantReadError:
                    came = self._feed()
                    if not came:
                        return done, came is None
                    continue
                if not got:
                    return done, False
                done += got  # type: ignore[operator]
            return done, True
        finally:
            self.received_bytes += done - before

    def _feed(self) -> int | None:
        try:
            came = self._sock.recv_into(_RAW)
        except BlockingIOError:
            return None
        self._in.write(_RAW[:came])
        return came

    def _flush(self, deadline: float) -> None:
        rest = memoryview(self._out.read())
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                self._wait(deadline, to_write=True)

    def _wait(self, deadline: float, *, to_write: bool = False) -> None:
        if not _ready(self._sock, _left_s(deadline), to_write=to_write):
            raise TimeoutError("the deadline has passed")


@contextmanager
def _turn(deadline: float) -> Iterator[None]:
    if not _TURN.acquire(timeout=_left_s(deadline)):
        raise TimeoutError("the deadline has passed")
    try:
        yield
    finally:
        _TURN.release()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline has passed")
    return left_s


def _ready(sock: socket.socket, timeout_s: float, *, to_write: bool) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return any(select.select([] if to_write else [sock], [sock] if to_write else [], [], timeout_s))
    poll = select.poll()
    poll.register(sock, select.POLLOUT if to_write else select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
