"""What the tests of the real world share: hosts on loopback and a small thing to serve."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.host import Peer, Refused
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import split_address
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.tls import client_context

TIMEOUT_S = 20.0


class Shelf:
    """Resources in memory; remembers who put what."""

    def __init__(self, **content: bytes) -> None:
        self.content = content
        self.puts: list[tuple[str, int, NodeId]] = []
        self.lock = threading.Lock()

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        if path == "full":
            raise ShoalError("SH-DISK-01", "no room for it", "free some space")
        if path == "broken":
            raise RuntimeError("this resource is broken")
        found = self.content.get(path)
        return None if found is None else found[start:stop]

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if path == "unwanted":
            raise Refused("no room for it")
        with self.lock:
            self.puts.append((path, len(body), sender))
        return b"thanks for " + path.encode()


@asynccontextmanager
async def serving(
    folder: Path, resources: Shelf, identity: Identity | None = None, **options: Any
) -> AsyncIterator[tuple[RealHost, Peer]]:
    """A host that offers `resources`, and how to reach it."""
    identity = identity or Identity.generate()
    async with RealHost(identity, FileDisk(folder), peer_port=0, **options) as host:
        yield host, Peer(node=identity.node, address=await host.offer(resources))


def client(folder: Path, identity: Identity | None = None, **options: Any) -> RealHost:
    return RealHost(identity or Identity.generate(), FileDisk(folder), **options)


def raw_tls(peer: Peer) -> ssl.SSLSocket:
    """A bare TLS connection to a peer, for speaking nonsense on it."""
    sock = socket.create_connection(split_address(peer.address), timeout=TIMEOUT_S)
    return client_context(peer.node).wrap_socket(sock)


def read_all(sock: ssl.SSLSocket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    try:
        while piece := sock.recv(65536):
            parts.append(piece)
    except (ConnectionError, ssl.SSLError):
        pass
    return b"".join(parts)
