"""Who may ask, and how much they may send.

In flow requests from anyone; out flow those whose token allows what they ask, with a body of bearable size.
Invariant: a token is compared in constant time and is never logged or answered. It travels in a header that no page
of another site can set, and there are no cookies, so that nobody can be made to ask for something unawares.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.apps.api.tokens import Scope as TokenScope
from shoal.apps.api.tokens import Tokens, allows
from shoal.base.errors import ShoalError

MAX_BODY_BYTES = 1 << 20
MAX_UPLOAD_BYTES = 2 << 30
UPLOADS = "/api/v1/datasets"

_bearer = HTTPBearer(auto_error=False, description="A token of the coordinator: view, operate or admin.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
Check = Callable[..., Awaitable[TokenScope | None]]


def require(tokens: Tokens, needed: TokenScope) -> Check:
    """A dependency that passes only requests whose token allows this. Raises SH-API-01 or SH-API-05."""

    async def check(given: Credentials) -> TokenScope:
        return check_token(tokens, given.credentials if given else "", needed)

    return check


def require_view_or_loopback(tokens: Tokens) -> Check:
    """A view token, but a client on this very machine needs none."""

    async def check(request: Request, given: Credentials) -> TokenScope | None:
        if _is_loopback(request.client.host if request.client else ""):
            return None
        return check_token(tokens, given.credentials if given else "", "view")

    return check


def check_token(tokens: Tokens, said: str, needed: TokenScope) -> TokenScope:
    """The scope of a token. Raises SH-API-01 if it is none of ours, SH-API-05 if it does not allow this."""
    scope = tokens.scope_of(said)
    if scope is None:
        raise ShoalError(
            "SH-API-01",
            "the bearer token is wrong" if said else "there is no bearer token",
            "send the content of the coordinator's admin-token file as `Authorization: Bearer TOKEN`",
        )
    if not allows(scope, needed):
        raise ShoalError(
            "SH-API-05",
            f"a token of scope {scope} does not allow this; it needs {needed}",
            f"use the content of the coordinator's {needed}-token file",
        )
    return scope


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class BoundedBodies:
    """ASGI middleware: a body longer than the bound is refused, before it is in memory. Uploads are written to disk as
    they come, and have a bound of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        got = 0
        most = MAX_UPLOAD_BYTES if scope["path"] == UPLOADS else MAX_BODY_BYTES

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
            return message

        await self._app(scope, bounded, send)
