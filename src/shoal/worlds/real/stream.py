"""HTTP messages over one TLS pipe, metered and held to the volunteer's rates.

In flow heads and bodies; out flow the same on the other side. Invariant: every call ends by its deadline,
and after a `ChannelClosed` the stream is of no further use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed
from shoal.worlds.real.http1 import HEAD_END, BadHead
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.pipe import Pipe

_READ_BYTES = 16 << 10
_KEPT_BUFFER_BYTES = 1 << 20


class Stream:
    def __init__(self, pipe: Pipe, throttle: Throttle, meter: Meter) -> None:
        self._pipe = pipe
        self._throttle = throttle
        self._meter = meter
        self._rest = bytearray()
        self._buffer = bytearray()
        self._packets = (0, 0)

    def read_head(self, limit_bytes: int, deadline: float) -> bytes:
        """The next head with its blank line; b"" if the other side closed in between messages."""
        with _broken():
            while (end := self._rest.find(HEAD_END)) < 0:
                if len(self._rest) > limit_bytes:
                    raise BadHead(f"a head of more than {limit_bytes} bytes")
                if not self._read_more(deadline):
                    return b""
        stop = end + len(HEAD_END)
        if stop > limit_bytes:
            raise BadHead(f"a head of more than {limit_bytes} bytes")
        head = bytes(self._rest[:stop])
        del self._rest[:stop]
        return head

    def read_body(self, size_bytes: int, deadline: float) -> bytes:
        """Exactly `size_bytes`; the caller has checked that this is a size it wants."""
        if len(self._buffer) < size_bytes:
            # Zeroed lazily by the system: a peer that announces much and sends little costs nothing.
            self._buffer = bytearray(size_bytes)
        early = min(len(self._rest), size_bytes)
        self._buffer[:early] = self._rest[:early]
        del self._rest[:early]
        with _broken(), memoryview(self._buffer) as view:
            self._read_exactly(view[early:size_bytes], deadline)
            body = bytes(view[:size_bytes])
        if len(self._buffer) > _KEPT_BUFFER_BYTES:
            self._buffer = bytearray()
        return body

    def send(self, head: bytes, body: Buffer, deadline: float) -> None:
        """Send a whole message."""
        with _broken():
            self._send(memoryview(head), deadline)
            if len(body):
                self._send(memoryview(body), deadline)
                self._count_packets()

    def wait_readable(self, timeout_s: float) -> bool:
        """True once there is something to read, or the other side has closed."""
        with _broken():
            return bool(self._rest) or self._pipe.wait_readable(timeout_s)

    def abort(self) -> None:
        """Make whatever another thread does on this stream fail now."""
        self._pipe.abort()

    def close(self) -> None:
        self._pipe.close()

    def _count_packets(self) -> None:
        (sent, again), before = self._pipe.packets(), self._packets
        self._packets = (sent, again)
        self._meter.packets(sent - before[0], again - before[1])

    def _read_more(self, deadline: float) -> bool:
        piece = bytearray(_READ_BYTES)
        with memoryview(piece) as view:
            got = self._pipe.receive_into(view, deadline)
        if not got and self._rest:
            raise ChannelClosed("closed in the middle of a head")
        self._meter.bulk(down=got)
        self._rest += piece[:got]
        return got > 0

    def _read_exactly(self, view: memoryview, deadline: float) -> None:
        limited = self._throttle.down_piece_bytes is not None
        done = 0
        try:
            while done < len(view):
                got = self._pipe.receive_into(view[done:], deadline)
                if not got:
                    raise ChannelClosed("closed in the middle of a body")
                done += got
                if limited:
                    self._throttle.wait_down(got, deadline)
        finally:
            self._meter.bulk(down=done)

    def _send(self, view: memoryview, deadline: float) -> None:
        piece_bytes = self._throttle.up_piece_bytes or len(view)
        for start in range(0, len(view), piece_bytes):
            piece = view[start : start + piece_bytes]
            self._throttle.wait_up(len(piece), deadline)
            self._pipe.send(piece, deadline)
            self._meter.bulk(up=len(piece))


@contextmanager
def _broken() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: the socket was closed under us
        raise ChannelClosed(str(error) or type(error).__name__) from error
