"""What every answer carries besides its content: security headers, and a tag that spares sending it twice.

In flow answers; out flow the same with headers, or 304 where the asker has this very content. Invariant: nothing may
be loaded from elsewhere, framed or sniffed; there are no CORS headers, so that no other site reads an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import blake3
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_TAGGED_BYTES = 8 << 20
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_ALWAYS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecureHeaders:
    """ASGI middleware: the headers above on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        private = scope["path"].startswith("/api/")

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                if private:
                    headers["Cache-Control"] = "private, no-cache"
            await send(message)

        await self._app(scope, receive, marked)


class Tags:
    """ASGI middleware: an ETag on every JSON answer to GET, and 304 where it is known already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        known = _listed(Headers(scope=scope).get("if-none-match", ""))
        await self._app(scope, receive, _Tagging(send, known).take)


class _Tagging:
    """Holds a JSON answer back until its end, to name it by its content."""

    def __init__(self, send: Send, known: frozenset[str]) -> None:
        self._send = send
        self._known = known
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_plain_json(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._finish(self._start, b"".join(self._parts))

    async def _finish(self, start: Message, body: bytes) -> None:
        tag = f'"{blake3.blake3(body).hexdigest()[:32]}"'
        headers = MutableHeaders(scope=start)
        headers["ETag"] = tag
        if tag in self._known or "*" in self._known:
            del headers["content-length"]
            start, body = {**start, "status": 304}, b""
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_plain_json(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    short = int(headers.get("content-length", MAX_TAGGED_BYTES + 1)) <= MAX_TAGGED_BYTES
    return message["status"] == 200 and headers.get("content-type", "") == "application/json" and short


def _listed(header: str) -> frozenset[str]:
    parts: Iterable[str] = (part.strip().removeprefix("W/") for part in header.split(","))
    return frozenset(part for part in parts if part)
