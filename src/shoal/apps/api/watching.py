"""The WebSocket: one per page, from its token to its end.

In flow a token and the run to watch; out flow frames of `live`. Invariant: nothing is sent before the token was
checked, pages of other sites are refused, and a socket that cannot be written to is closed, never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from shoal.apps.api.guard import check_token
from shoal.apps.api.live import Live, Watcher
from shoal.apps.api.tokens import Tokens
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId

FIRST_WORD_S, SEND_S = 10.0, 10.0
MAX_WATCHERS = 512
WRONG_TOKEN, FOREIGN_PAGE, TOO_MANY, NOT_UNDERSTOOD = 4401, 4403, 4429, 4400


class Wish(msgspec.Struct, frozen=True):
    """What a page says: who it is (first), and which run it shows (whenever that changes)."""

    token: str = ""
    run: str | None = None


def live_routes(live: Live, tokens: Tokens) -> APIRouter:
    routes = APIRouter()
    open_sockets: set[WebSocket] = set()

    @routes.websocket("/api/v1/live")
    async def watch(socket: WebSocket) -> None:
        await socket.accept()
        if not _is_own_page(socket):
            await socket.close(FOREIGN_PAGE, "pages of other sites may not watch")
            return
        if len(open_sockets) >= MAX_WATCHERS:
            await socket.close(TOO_MANY, "too many pages are watching")
            return
        open_sockets.add(socket)
        try:
            await _serve(socket, live, tokens)
        finally:
            open_sockets.discard(socket)

    return routes


def _is_own_page(socket: WebSocket) -> bool:
    """Programs send no origin; browsers always do, and theirs must be this very address."""
    origin = socket.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == socket.headers.get("host", "")


async def _serve(socket: WebSocket, live: Live, tokens: Tokens) -> None:
    watcher = Watcher()
    try:
        async with asyncio.timeout(FIRST_WORD_S):
            wish = await _hear(socket)
        scope = check_token(tokens, wish.token, "view")
        await socket.send_text(msgspec.json.encode({"type": "welcome", "scope": scope}).decode())
        watcher.run = RunId(wish.run) if wish.run else None
        live.watch(watcher)
        await _until_one_ends(_listen(socket, watcher, live), _tell(socket, watcher))
    except ShoalError as error:
        await _close(socket, WRONG_TOKEN, error.cause)
    except (msgspec.DecodeError, TimeoutError, KeyError):
        await _close(socket, NOT_UNDERSTOOD, "not understood in time")
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        live.leave(watcher)


async def _until_one_ends(*work: object) -> None:
    tasks = [asyncio.ensure_future(part) for part in work]  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hear(socket: WebSocket) -> Wish:
    return msgspec.json.decode(await socket.receive_text(), type=Wish)


async def _listen(socket: WebSocket, watcher: Watcher, live: Live) -> None:
    while True:
        wish = await _hear(socket)
        watcher.run = RunId(wish.run) if wish.run else None
        watcher.frames.clear()
        live.watch(watcher)


async def _tell(socket: WebSocket, watcher: Watcher) -> None:
    while True:
        await watcher.news.wait()
        watcher.news.clear()
        while watcher.frames:
            await _send(socket, watcher.frames.popleft())


async def _send(socket: WebSocket, frame: str) -> None:
    async with asyncio.timeout(SEND_S):
        await socket.send_text(frame)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(RuntimeError):
        await socket.close(code, reason[:100])
