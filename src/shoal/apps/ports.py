"""This machine's ports, before anything slow is begun.

In flow addresses; out flow bound sockets, or an error with a code. Invariant: a port that is taken is found before
a coordinator touches its store.
"""

from __future__ import annotations

import socket

from shoal.worlds.real.addresses import cannot_listen


def open_port(host: str, port: int) -> socket.socket:
    """A bound socket (0: any free port). Raises SH-SERVE-01 or SH-SERVE-02."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        # Listening here already, so that two who bind at once cannot both go on.
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise cannot_listen(host, port, error) from error
    return sock


def check_ports(*addresses: tuple[str, int]) -> None:
    """Raise SH-SERVE-01 or SH-SERVE-02 for the first that cannot be had now. Whoever opens them checks again."""
    for host, port in addresses:
        open_port(host, port).close()
