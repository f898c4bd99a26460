"""Control channels: one WebSocket per pair, on a connection of its own.

In flow frames; out flow frames. Invariant: a channel that cannot deliver says so. Sends have a deadline,
silence is ended by pings, queues and frames are bounded, and every failure is a `ChannelClosed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.asyncio.server import Server, ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.exceptions import WebSocketException

from shoal.base.errors import ChannelClosed
from shoal.base.host import Channel
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import cannot_listen, join_address, split_address
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.tls import WrongNode, client_context, not_who_was_expected, server_context

log = logging.getLogger(__name__)
# The library's own logger reports every stranger who knocks; the channel reports what matters.
_quiet = logging.getLogger("shoal.websockets")
_quiet.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """Bounds of a control channel. A dead peer is noticed after at most `ping_s + pong_s`."""

    frame_bytes: int = 4 << 20
    queue_frames: int = 16
    channels: int = 4096
    open_s: float = 10.0
    send_s: float = 20.0
    ping_s: float = 10.0
    pong_s: float = 20.0
    close_s: float = 2.0


class SocketChannel:
    """Implements `base.host.Channel`."""

    def __init__(
        self, socket: ClientConnection | ServerConnection, meter: Meter, limits: ChannelLimits
    ) -> None:
        self._socket = socket
        self._meter = meter
        self._limits = limits

    async def send(self, frame: bytes) -> None:
        if len(frame) > self._limits.frame_bytes:
            await self.close()
            raise ChannelClosed(f"a frame of {len(frame)} bytes exceeds {self._limits.frame_bytes}")
        try:
            async with asyncio.timeout(self._limits.send_s):
                await self._socket.send(frame)
        except TimeoutError as error:
            self._socket.transport.abort()
            raise ChannelClosed(f"a frame could not be sent in {self._limits.send_s:g} s") from error
        except (WebSocketException, OSError) as error:
            raise ChannelClosed(str(error)) from error
        self._meter.control(up=len(frame))

    async def recv(self) -> bytes:
        try:
            frame = await self._socket.recv()
        except (WebSocketException, OSError) as error:
            raise ChannelClosed(str(error)) from error
        if not isinstance(frame, bytes):
            await self.close()
            raise ChannelClosed("the other side sent text, not a frame")
        self._meter.control(down=len(frame))
        return frame

    async def close(self) -> None:
        with suppress(TimeoutError, WebSocketException, OSError):
            async with asyncio.timeout(2 * self._limits.close_s):
                await self._socket.close()
                return
        self._socket.transport.abort()


async def connect(address: str, node: NodeId, meter: Meter, limits: ChannelLimits) -> SocketChannel:
    """A channel to `node`. Raises `ChannelClosed` if it does not answer, SH-JOIN-07 if somebody else does."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(limits.open_s):
            socket = await open_websocket(
                f"wss://{join_address(host, port)}/control",
                ssl=client_context(node),
                proxy=None,
                compression=None,
                logger=_quiet,
                open_timeout=limits.open_s,
                ping_interval=limits.ping_s,
                ping_timeout=limits.pong_s,
                close_timeout=limits.close_s,
                max_size=limits.frame_bytes,
                max_queue=limits.queue_frames,
            )
    except WrongNode as wrong:
        raise not_who_was_expected(address, wrong) from wrong
    except (TimeoutError, WebSocketException, OSError) as error:
        raise ChannelClosed(f"{address} does not answer: {error or type(error).__name__}") from error
    return SocketChannel(socket, meter, limits)


class ChannelServer:
    """Accepts channels from `start` to `close`, each handled by `serve` in a task of its own."""

    def __init__(
        self,
        identity: Identity,
        serve: Callable[[Channel], Awaitable[None]],
        meter: Meter,
        limits: ChannelLimits,
    ) -> None:
        self._context = server_context(identity)
        self._serve = serve
        self._meter = meter
        self._limits = limits
        self._open = 0
        self._server: Server | None = None

    async def start(self, bind: str, port: int) -> int:
        """Open the port (0: any); the port. Raises SH-SERVE-01 or SH-SERVE-02."""
        limits = self._limits
        try:
            self._server = await serve_websockets(
                self._handle,
                bind,
                port,
                ssl=self._context,
                ssl_handshake_timeout=limits.open_s,
                compression=None,
                logger=_quiet,
                open_timeout=limits.open_s,
                ping_interval=limits.ping_s,
                ping_timeout=limits.pong_s,
                close_timeout=limits.close_s,
                max_size=limits.frame_bytes,
                max_queue=limits.queue_frames,
            )
        except OSError as error:
            raise cannot_listen(bind, port, error) from error
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def close(self) -> None:
        if self._server:
            self._server.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(3 * self._limits.close_s):
                    await self._server.wait_closed()

    async def _handle(self, socket: ServerConnection) -> None:
        if self._open >= self._limits.channels:
            await socket.close(1013, "too many channels")
            return
        self._open += 1
        channel = SocketChannel(socket, self._meter, self._limits)
        try:
            await self._serve(channel)
        except ChannelClosed as closed:
            log.debug("channel_closed", extra={"reason": str(closed)})
        except Exception:
            # One channel's failure is reported and must not take the others down.
            log.exception("channel_failed")
        finally:
            self._open -= 1
            await channel.close()
