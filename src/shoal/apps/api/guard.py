"""Who may ask, and how much they may send.

In flow requests from anyone; out flow those with the admin token and a body of bearable size. Invariant: the
token is compared in constant time and is never logged or answered.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.base.errors import ShoalError

MAX_BODY_BYTES = 1 << 20

_bearer = HTTPBearer(auto_error=False, description="The coordinator's admin token.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
Check = Callable[..., Awaitable[None]]


def require_token(token: str) -> Check:
    """A dependency that passes only requests with this bearer token. Raises SH-API-01."""

    async def check(given: Credentials) -> None:
        _compare(given, token)

    return check


def require_token_or_loopback(token: str) -> Check:
    """The same, but a client on this very machine needs none."""

    async def check(request: Request, given: Credentials) -> None:
        if not _is_loopback(request.client.host if request.client else ""):
            _compare(given, token)

    return check


def _compare(given: HTTPAuthorizationCredentials | None, token: str) -> None:
    said = given.credentials if given else ""
    if not hmac.compare_digest(said.encode(), token.encode()):
        raise ShoalError(
            "SH-API-01",
            "the bearer token is wrong" if given else "there is no bearer token",
            "send the content of the coordinator's admin-token file as `Authorization: Bearer TOKEN`",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class BoundedBodies:
    """ASGI middleware: a body longer than the bound is refused, before it is in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        got = 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, bounded, send)
