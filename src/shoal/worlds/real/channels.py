"""Control channels: one WebSocket per pair, on a connection of its own.

In flow frames; out flow frames. Invariant: a channel that cannot deliver says so. Sends have a deadline,
silence is ended by pings, queues and frames are bounded, and every failure is a `ChannelClosed`. A stranger
may send small frames only, and one address holds few channels.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.asyncio.server import Server, ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.exceptions import WebSocketException
from websockets.protocol import State

from shoal.base.errors import ChannelClosed
from shoal.base.host import Channel
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import cannot_listen, join_address, split_address
from shoal.worlds.real.limits import Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.tls import WrongNode, client_context, not_who_was_expected, server_context

log = logging.getLogger(__name__)
# The library's own logger reports every stranger who knocks; the channel reports what matters.
_quiet = logging.getLogger("shoal.websockets")
_quiet.setLevel(logging.CRITICAL)
# What a broken connection raises; uvloop says RuntimeError of a transport that is closed already.
_BROKEN = (WebSocketException, OSError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """Bounds of a control channel. A dead peer is noticed after at most `ping_s + pong_s`."""

    frame_bytes: int = 4 << 20
    hello_bytes: int = 64 << 10
    """The longest frame from whoever was not admitted yet."""
    queue_frames: int = 16
    channels: int = 4096
    channels_per_remote: int = 128
    """Raise it where many nodes come from behind one address."""
    open_s: float = 10.0
    send_s: float = 20.0
    ping_s: float = 10.0
    pong_s: float = 20.0
    close_s: float = 2.0


class SocketChannel:
    """Implements `base.host.Channel`."""

    def __init__(
        self,
        socket: ClientConnection | ServerConnection,
        meter: Meter,
        limits: ChannelLimits,
        throttle: Throttle | None = None,
    ) -> None:
        self._socket = socket
        self._meter = meter
        self._limits = limits
        self._throttle = throttle if throttle and throttle.counts_months else None
        self._closing: asyncio.Task[None] | None = None

    def admit(self) -> None:
        self._socket.protocol.max_message_size = self._limits.frame_bytes

    def opened_at(self) -> float | None:
        """When the channel was opened, in seconds by the other side's clock, if it said so."""
        response = self._socket.response
        try:
            return (
                parsedate_to_datetime(response.headers["Date"]).timestamp() if response is not None else None
            )
        except (KeyError, ValueError, OverflowError):
            return None

    async def send(self, frame: bytes) -> None:
        """As in `Channel`; besides, SH-JOIN-10 once the volunteer's monthly limit is spent."""
        if len(frame) > self._limits.frame_bytes:
            await self.close()
            raise ChannelClosed(f"a frame of {len(frame)} bytes exceeds {self._limits.frame_bytes}")
        if self._closing or self._socket.state is not State.OPEN:
            raise ChannelClosed("the channel is closed")
        if self._throttle:  # In a thread: now and then the month's count goes to disk.
            await asyncio.to_thread(self._throttle.admit, len(frame))
        try:
            async with asyncio.timeout(self._limits.send_s):
                await self._socket.send(frame)
        except TimeoutError as error:
            self._abort()
            raise ChannelClosed(f"a frame could not be sent in {self._limits.send_s:g} s") from error
        except _BROKEN as error:
            raise ChannelClosed(str(error)) from error
        self._meter.control(up=len(frame))

    async def recv(self) -> bytes:
        try:
            frame = await self._socket.recv()
        except _BROKEN as error:
            raise ChannelClosed(str(error)) from error
        if not isinstance(frame, bytes):
            await self.close()
            raise ChannelClosed("the other side sent text, not a frame")
        self._meter.control(down=len(frame))
        if self._throttle:
            await asyncio.to_thread(self._throttle.count, len(frame))
        return frame

    async def close(self) -> None:
        """Close once, however many ask and whoever of them is cancelled; all wait for the same end."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close channel")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(TimeoutError, *_BROKEN):
            async with asyncio.timeout(2 * self._limits.close_s):
                if self._socket.state is State.OPEN:
                    await self._socket.close()
                else:
                    # The library would abort a transport that the other side's goodbye has closed already,
                    # and uvloop reports that as a fatal error.
                    await self._socket.wait_closed()
        self._abort()

    def _abort(self) -> None:
        if self._socket.state is not State.CLOSED:
            with suppress(RuntimeError):
                self._socket.transport.abort()


async def connect(
    address: str, node: NodeId, meter: Meter, limits: ChannelLimits, throttle: Throttle | None = None
) -> SocketChannel:
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
    except (TimeoutError, WebSocketException, OSError, ValueError) as error:  # the last: no host's name
        raise ChannelClosed(f"{address} does not answer: {error or type(error).__name__}") from error
    return SocketChannel(socket, meter, limits, throttle)


class ChannelServer:
    """Accepts channels from `start` to `close`, each handled by `serve` in a task of its own."""

    def __init__(
        self,
        identity: Identity,
        serve: Callable[[Channel], Awaitable[None]],
        meter: Meter,
        limits: ChannelLimits,
        throttle: Throttle | None = None,
    ) -> None:
        self._context = server_context(identity)
        self._serve = serve
        self._meter = meter
        self._throttle = throttle
        self._limits = limits
        self._open: Counter[str] = Counter()
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
                max_size=min(limits.hello_bytes, limits.frame_bytes),
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
        remote = str(socket.remote_address[0]) if socket.remote_address else ""
        full = self._open.total() >= self._limits.channels
        if full or self._open[remote] >= self._limits.channels_per_remote:
            log.warning("channel_refused", extra={"remote": remote})
            await socket.close(1013, "too many channels")
            return
        self._open[remote] += 1
        channel = SocketChannel(socket, self._meter, self._limits, self._throttle)
        try:
            await self._serve(channel)
        except ChannelClosed as closed:
            log.debug("channel_closed", extra={"reason": str(closed)})
        except Exception:
            # One channel's failure is reported and must not take the others down.
            log.exception("channel_failed")
        finally:
            self._open[remote] -= 1
            if not self._open[remote]:
                del self._open[remote]
            await channel.close()
