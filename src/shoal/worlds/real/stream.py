"""HTTP messages over one TLS pipe, metered and held to the volunteer's rates.

In flow heads and bodies; out flow the same on the other side. Invariant: every call ends by its deadline,
and after a `ChannelClosed` the stream is of no further use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        with _broken(), memoryview(self._room(size_bytes)) as whole, whole[:size_bytes] as view:
            self._read_into(view, deadline)
            return bytes(view)

    def read_pieces(
        self, sizes: Sequence[int], take: Callable[[memoryview], bool], deadline: float
    ) -> tuple[int, bool]:
        """A body in pieces, each given to `take` while the next is still on its way, in memory that is used again; how
        much came, and whether all was taken: after a False the rest is left unread."""
        done = 0
        buffer = self._room(max(sizes, default=0))
        for size in sizes:
            with memoryview(buffer) as whole, whole[:size] as view:
                with _broken():
                    self._read_into(view, deadline)
                done += size
                if not take(view):
                    return done, False
        return done, True

    def send(self, head: bytes, body: Buffer, deadline: float) -> None:
        """Send a whole message."""
        with _broken():
            if not len(body):
                self._send(memoryview(head), deadline)
                return
            self._throttle.wait_up(len(head), deadline)
            self._pipe.queue(memoryview(head))
            self._meter.bulk(up=len(head))
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

    def _room(self, size_bytes: int) -> bytearray:
        """Memory for so much, used again where it is not too much to keep."""
        if len(self._buffer) >= size_bytes:
            return self._buffer
        # Zeroed lazily by the system: a peer that announces much and sends little costs nothing.
        room = bytearray(size_bytes)
        if size_bytes <= _KEPT_BUFFER_BYTES:
            self._buffer = room
        return room

    def _read_more(self, deadline: float) -> bool:
        piece = bytearray(_READ_BYTES)
        with memoryview(piece) as view:
            got = self._pipe.receive_into(view, deadline)
        if not got and self._rest:
            raise ChannelClosed("closed in the middle of a head")
        self._meter.bulk(down=got)
        self._rest += piece[:got]
        return got > 0

    def _read_into(self, view: memoryview, deadline: float) -> None:
        """All of `view`, what came with the head first."""
        done = min(len(self._rest), len(view))
        view[:done] = self._rest[:done]
        del self._rest[:done]
        piece_bytes = self._throttle.down_piece_bytes or len(view)
        before = self._pipe.received_bytes
        try:
            while done < len(view):
                piece = view[done : done + piece_bytes]
                got = self._pipe.fill(piece, deadline)
                if got < len(piece):
                    raise ChannelClosed("closed in the middle of a body")
                done += got
                self._throttle.wait_down(got, deadline)
        finally:
            self._meter.bulk(down=self._pipe.received_bytes - before)

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
