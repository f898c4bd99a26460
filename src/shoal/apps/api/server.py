"""The HTTP server inside somebody else's event loop.

In flow an app and a bound socket; out flow answers until `should_exit`. Invariant: signals stay with the
process that owns the loop, and a server that is cancelled gives its port back as one that was asked to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from shoal.apps.api.tls import Certificate
from shoal.worlds.real.addresses import join_address

GRACE_S = 2


class ApiServer(uvicorn.Server):
    """Serves `app`; set `should_exit` to end it."""

    def __init__(self, app: FastAPI, certificate: Certificate | None = None) -> None:
        config = uvicorn.Config(
            app,
            ssl_certfile=certificate.cert if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
            loop="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            limit_concurrency=1024,
            ws_max_size=1 << 16,
            ws_per_message_deflate=False,
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except asyncio.CancelledError:
            # Else uvicorn leaves port and callers to the loop, and a coordinator that was deposed wants both back.
            if self.started:
                await self.shutdown(sockets=sockets)
            raise

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def address_of(sock: socket.socket) -> str:
    """`host:port`, fit for a URL on this machine."""
    host, port = sock.getsockname()[:2]
    return join_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)  # noqa: S104
