"""Requests to peers: the asking side of the bulk transport.

In flow ranges and bodies wanted by the event loop; out flow bytes, or one failure. Invariant: every request
ends by its deadline, a cancelled request frees its thread at once, and no peer can take up more than its
share of the threads.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed
from shoal.base.host import Peer, Refused
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real.http1 import Reply, parse_reply, render_get, render_put
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.peer_pool import Line, PeerPool
from shoal.worlds.real.peer_proof import NONCE_BYTES, NONCE_PATH, make_proof
from shoal.worlds.real.peer_session import MESSAGE_BYTES
from shoal.worlds.real.tls import WrongNode

THREADS = 64
# Enough to fill a long link when one connection loses a packet; more only contend for the interpreter lock.
LINES_PER_PEER = 4
ASK_BYTES = 1 << 20
"""The most that is asked for in one request that is taken in pieces: whoever answers has it all in memory."""
_HEAD_BYTES = 8 << 10
T = TypeVar("T")
A = TypeVar("A", covariant=True)


class _Call:
    """One request on its way through a thread; `abort` may come from another."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._aborted = False

    def hold(self, line: Line | None) -> None:
        """From now on `abort` breaks this line."""
        with self._lock:
            self._line = line
            if self._aborted and line:
                line.stream.abort()

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            if self._line:
                self._line.stream.abort()


class _SaidNo(ChannelClosed):
    """A whole reply, but not the wanted one: the line is good, asking again is pointless."""


class PeerClient:
    """Gets and puts, several at a time per peer."""

    def __init__(self, identity: Identity, throttle: Throttle, meter: Meter) -> None:
        self._identity = identity
        self._throttle = throttle
        self._pool = PeerPool(throttle, meter)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-bulk")
        self._free = asyncio.Semaphore(THREADS)
        self._lanes: dict[NodeId, tuple[asyncio.Semaphore, int]] = {}
        self._calls: set[_Call] = set()

    async def get(self, peer: Peer, path: str, start: int, stop: int, timeout_s: float) -> bytes:
        """Bytes [start, stop), fewer at the resource's end; ranges longer than a message go in several."""
        deadline = time.monotonic() + timeout_s
        parts: list[bytes] = []
        while start < stop:
            size = min(stop - start, MESSAGE_BYTES)
            ask = _Get(path=path, start=start, stop=start + size, refund=self._throttle.refund)
            parts.append(await self._request(peer, ask, deadline))
            start += size
            if len(parts[-1]) < size:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def get_pieces(
        self,
        peer: Peer,
        path: str,
        cuts: Sequence[int],
        take: Callable[[int, Buffer], bool],
        timeout_s: float,
    ) -> int:
        """Bytes from cut to cut, each piece given to `take` in the thread that receives it; how many came."""
        ask = _GetPieces(path=path, cuts=tuple(cuts), take=take, throttle=self._throttle)
        return await self._request(peer, ask, time.monotonic() + timeout_s)

    async def put(self, peer: Peer, path: str, body: bytes, timeout_s: float) -> bytes:
        """Give `body`, at most `MESSAGE_BYTES` of it."""
        if len(body) > MESSAGE_BYTES:
            raise ChannelClosed(f"a put takes at most {MESSAGE_BYTES} bytes, not {len(body)}")
        ask = _Put(path=path, body=body, identity=self._identity)
        return await self._request(peer, ask, time.monotonic() + timeout_s)

    def close(self) -> None:
        """Break every connection, idle or in use."""
        for call in list(self._calls):
            call.abort()
        self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _request(self, peer: Peer, ask: _Ask[T], deadline: float) -> T:
        if not peer.address:
            raise ChannelClosed(f"node {peer.node} takes no inbound connections")
        call = _Call(deadline)
        self._calls.add(call)
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._lane(peer.node), self._free:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._perform, call, peer, ask)
        except TimeoutError as error:
            raise ChannelClosed(f"{peer.address} did not answer in time") from error
        finally:
            self._calls.discard(call)
            call.abort()  # nothing to break where the request has ended by itself

    @asynccontextmanager
    async def _lane(self, node: NodeId) -> AsyncIterator[None]:
        """One of the peer's shares of the threads."""
        gate, users = self._lanes.get(node) or (asyncio.Semaphore(LINES_PER_PEER), 0)
        self._lanes[node] = gate, users + 1
        try:
            async with gate:
                yield
        finally:
            gate, users = self._lanes.pop(node)
            if users > 1:
                self._lanes[node] = gate, users - 1

    def _perform(self, call: _Call, peer: Peer, ask: _Ask[T]) -> T:
        """In a thread: one exchange; a kept line that turns out dead is replaced once."""
        self._throttle.admit(ask.size_bytes)
        try:
            line = self._pool.take(peer, call.deadline)
            kept = line.used
            try:
                return self._exchange(call, line, ask)
            except _SaidNo:
                raise
            except ChannelClosed:
                if not kept:
                    raise
            return self._exchange(call, self._pool.open(peer, call.deadline), ask)
        except WrongNode as wrong:
            raise ChannelClosed(f"{peer.address}: {wrong}") from wrong
        except OSError as error:
            raise ChannelClosed(f"{peer.address}: {error}") from error

    def _exchange(self, call: _Call, line: Line, ask: _Ask[T]) -> T:
        call.hold(line)
        whole = False
        try:
            answer = ask(line, call.deadline)
            whole = True
            return answer
        except (Refused, _SaidNo):
            whole = True
            raise
        finally:
            call.hold(None)
            if whole and line.keep:
                self._pool.give(line)
            else:
                line.stream.close()


class _Ask(Protocol[A]):
    """One request and its reply, as spoken on a line."""

    @property
    def size_bytes(self) -> int:
        """What it will move at most, to be charged beforehand; 0 if it sees to that itself."""

    def __call__(self, line: Line, deadline: float) -> A: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Get:
    """Asks for one range."""

    path: str
    start: int
    stop: int
    refund: Callable[[int], None]

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def __call__(self, line: Line, deadline: float) -> bytes:
        line.stream.send(render_get(line.peer.address, self.path, self.start, self.stop), b"", deadline)
        reply, body = _read_reply(line, self.size_bytes, deadline)
        if reply.status not in (206, 416):
            raise _failure(line, reply, body)
        found = body if reply.status == 206 else b""
        if len(found) > self.size_bytes:
            raise ChannelClosed(f"{line.peer.address} sends more than was asked")
        self.refund(self.size_bytes - len(found))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _GetPieces:
    """Asks for a range in a few requests, each before the last one's answer is here, and gives away piece by piece what
    comes of them. Each is charged when it is made, so that little is lost by a connection that breaks."""

    path: str
    cuts: tuple[int, ...]
    take: Callable[[int, Buffer], bool]
    throttle: Throttle

    @property
    def size_bytes(self) -> int:
        return 0

    def __call__(self, line: Line, deadline: float) -> int:
        requests = _grouped(self.cuts)
        asked = done = answered = 0
        try:
            asked += self._ask(line, requests[0], deadline)
            for group, following in itertools.zip_longest(requests, requests[1:]):
                if following:
                    asked += self._ask(line, following, deadline)
                came, whole = self._receive(line, group, deadline)
                done += came
                if not whole:
                    break
                answered += 1
        finally:
            # Else there are answers on their way that nobody would read.
            line.keep = line.keep and answered == len(requests)
        self.throttle.refund(asked - done)
        return done

    def _ask(self, line: Line, group: tuple[int, ...], deadline: float) -> int:
        start, stop = group[0], group[-1]
        self.throttle.admit(stop - start)
        line.stream.send(render_get(line.peer.address, self.path, start, stop), b"", deadline)
        return stop - start

    def _receive(self, line: Line, group: tuple[int, ...], deadline: float) -> tuple[int, bool]:
        """One answer: how much came, and whether that was all and all was wanted."""
        first, last = group[0], group[-1]
        reply = _read_reply_head(line, last - first, deadline)
        if reply.status not in (206, 416):
            raise _failure(line, reply, line.stream.read_body(reply.body_bytes, deadline))
        stop = first + (reply.body_bytes if reply.status == 206 else 0)
        if stop > last:
            raise ChannelClosed(f"{line.peer.address} sends more than was asked")
        sizes = [min(end, stop) - start for start, end in itertools.pairwise(group) if start <= stop]
        starts = iter(group)
        came, wanted = line.stream.read_pieces(sizes, lambda piece: self.take(next(starts), piece), deadline)
        return came, wanted and stop == last


def _grouped(cuts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The same pieces in as few requests as may be."""
    groups, begin = [], 0
    for end in range(1, len(cuts)):
        if end + 1 == len(cuts) or cuts[end + 1] - cuts[begin] > ASK_BYTES:
            groups.append(cuts[begin : end + 1])
            begin = end
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    """Gives one body; introduces us first where the line is new."""

    path: str
    body: bytes
    identity: Identity

    @property
    def size_bytes(self) -> int:
        return len(self.body)

    def __call__(self, line: Line, deadline: float) -> bytes:
        proof: dict[str, str] = {}
        if not line.introduced:
            proof = make_proof(self.identity, line.peer.node, _nonce(line, deadline))
        head = render_put(line.peer.address, self.path, len(self.body), proof)
        line.stream.send(head, self.body, deadline)
        reply, body = _read_reply(line, MESSAGE_BYTES, deadline)
        line.introduced = True
        if reply.status == 409:
            raise Refused(body.decode(errors="replace"))
        if reply.status != 200:
            raise _failure(line, reply, body)
        return body


def _nonce(line: Line, deadline: float) -> bytes:
    line.stream.send(render_get(line.peer.address, NONCE_PATH, 0, NONCE_BYTES), b"", deadline)
    reply, nonce = _read_reply(line, MESSAGE_BYTES, deadline)
    if reply.status != 200 or len(nonce) != NONCE_BYTES:
        raise _failure(line, reply, nonce)
    return nonce


def _read_reply(line: Line, limit_bytes: int, deadline: float) -> tuple[Reply, bytes]:
    reply = _read_reply_head(line, limit_bytes, deadline)
    return reply, line.stream.read_body(reply.body_bytes, deadline)


def _read_reply_head(line: Line, limit_bytes: int, deadline: float) -> Reply:
    head = line.stream.read_head(_HEAD_BYTES, deadline)
    if not head:
        raise ChannelClosed(f"{line.peer.address} closed the connection")
    reply = parse_reply(head)
    # Even a small range may be answered by a sentence on why not.
    if reply.body_bytes > max(limit_bytes, _HEAD_BYTES):
        raise ChannelClosed(
            f"{line.peer.address} sends {reply.body_bytes} bytes where {limit_bytes} were asked"
        )
    line.keep = reply.keep
    return reply


def _failure(line: Line, reply: Reply, body: bytes) -> _SaidNo:
    words = body[:200].decode(errors="replace")
    return _SaidNo(f"{line.peer.address} answered {reply.status}: {words}")
