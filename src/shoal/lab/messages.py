"""Between a lab and its keeper: one JSON object a datagram, with descriptors beside it.

In flow requests; out flow answers and news. Invariant: a message is whole or not there (SOCK_SEQPACKET), and an
empty one is the other side's end.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

MOST_BYTES = 1 << 20
MOST_FDS = 8


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that know whole messages, with room for large ones."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
    return ends


def send(end: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(end, [data], fds)
    else:
        end.send(data)


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None once the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(end, MOST_BYTES, MOST_FDS)
    except ConnectionResetError:
        return None
    if not data:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)  # `recv_fds` leaves them open to every program that is started.
    message: dict[str, Any] = json.loads(data)
    return message, fds
