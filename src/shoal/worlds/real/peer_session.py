"""What is said on one peer connection: requests in, replies out, until it ends.

In flow HTTP requests; out flow ranges of our resources and replies to puts. Invariant: a request costs this
process no more than its limits say (head, body, range, time), whoever sends it; gets are anonymous, puts
are signed for.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Refused, Resources
from shoal.base.ids import NodeId
from shoal.worlds.real.http1 import BadHead, Request, parse_request, render_reply, wanted_range
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.peer_proof import NONCE_PATH, new_nonce, proven_sender
from shoal.worlds.real.stream import Stream

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4 << 20
"""The largest body of a put, and the largest range of one get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What peers may take up. Raise `connections` on a seeder with many peers; each is a thread."""

    connections: int = 256
    connections_per_remote: int = 128
    head_bytes: int = 8 << 10
    body_bytes: int = MESSAGE_BYTES
    range_bytes: int = MESSAGE_BYTES
    handshake_s: float = 10.0
    head_s: float = 10.0
    idle_s: float = 60.0
    request_s: float = 300.0


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    content_range: str | None = None
    ends: bool = False


class Session:
    """One connection. `heard` and `idle_since` tell the server which connection it can best do without."""

    def __init__(
        self, stream: Stream, resources: Resources, server: NodeId, throttle: Throttle, limits: ServerLimits
    ) -> None:
        self.stream = stream
        self.heard = False
        """Whether it has asked for anything. Until then it has been idle since it came, however long its hello is."""
        self.idle_since: float | None = time.monotonic()
        self._resources = resources
        self._server = server
        self._throttle = throttle
        self._limits = limits
        self._nonce = new_nonce()
        self._sender: NodeId | None = None

    def run(self) -> None:
        """Answer requests until the peer leaves, misbehaves or falls silent.

        Raises `ChannelClosed` if the connection breaks.
        """
        while self._next():
            pass

    def _next(self) -> bool:
        if self.heard:
            self.idle_since = time.monotonic()
        if not self.stream.wait_readable(self._limits.idle_s):
            return False
        started = time.monotonic()
        deadline = started + self._limits.request_s
        try:
            head = self.stream.read_head(self._limits.head_bytes, started + self._limits.head_s)
            if not head:
                return False
            self.heard, self.idle_since = True, None
            request = parse_request(head)
            answer = self._answer(request, deadline)
        except BadHead as error:
            answer = _Answer(400, str(error).encode(), ends=True)
            return self._reply(answer, False, time.monotonic() + self._limits.head_s)
        return self._reply(answer, request.keep, deadline)

    def _reply(self, answer: _Answer, keep: bool, deadline: float) -> bool:
        keep = keep and not answer.ends
        head = render_reply(answer.status, len(answer.body), keep, answer.content_range)
        self.stream.send(head, answer.body, deadline)
        return keep

    def _answer(self, request: Request, deadline: float) -> _Answer:
        try:
            if request.method == "PUT":
                return self._put(request, deadline)
            if request.body_bytes:
                return _Answer(413, b"only a PUT has a body", ends=True)
            if request.method != "GET":
                return _Answer(405, b"GET or PUT", ends=True)
            if request.path == NONCE_PATH:
                return _Answer(200, self._nonce)
            return self._get(request)
        except ShoalError as error:
            if error.code == "SH-JOIN-10":
                return _Answer(503, str(error).encode(), ends=True)
            said = {"path": request.path, "code": error.code, "cause": error.cause, "next": error.next_step}
            log.error("peer_request_failed", extra=said)
            return _Answer(500, error.code.encode(), ends=True)
        except ChannelClosed:
            raise
        except Exception:
            # A fault in one resource is reported and must not take the server down.
            log.exception("peer_request_failed", extra={"path": request.path})
            return _Answer(500, b"internal error", ends=True)

    def _get(self, request: Request) -> _Answer:
        limit = self._limits.range_bytes
        wanted = wanted_range(request)
        start, stop = wanted or (0, None)
        if stop is not None and stop - start > limit:
            return _Answer(413, f"ask for at most {limit} bytes at a time".encode())
        data = self._resources.get(request.path, start, start + limit + 1 if stop is None else stop)
        if data is None:
            return _Answer(404, b"no such resource")
        if len(data) > limit:
            return _Answer(413, f"ask for ranges of at most {limit} bytes".encode())
        self._throttle.admit(len(data))
        if wanted is None:
            return _Answer(200, data)
        if not data:
            return _Answer(416, b"the resource ends before this range")
        return _Answer(206, data, f"bytes {start}-{start + len(data) - 1}/*")

    def _put(self, request: Request, deadline: float) -> _Answer:
        if request.body_bytes > self._limits.body_bytes:
            return _Answer(413, f"at most {self._limits.body_bytes} bytes".encode(), ends=True)
        if self._sender is None:
            self._sender = proven_sender(request.headers, self._server, self._nonce)
        if self._sender is None:
            return _Answer(401, b"sign this connection's nonce", ends=True)
        self._throttle.admit(request.body_bytes)
        body = self.stream.read_body(request.body_bytes, deadline)
        try:
            return _Answer(200, self._resources.put(request.path, body, self._sender))
        except Refused as refusal:
            return _Answer(409, str(refusal).encode())
