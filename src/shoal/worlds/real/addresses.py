"""Addresses as text, and ports that can be opened or not.

In flow `host:port` texts and the system's errors; out flow pairs and errors that people can act on.
"""

from __future__ import annotations

import errno
import socket

from shoal.base.errors import ChannelClosed, ShoalError

_WILDCARDS = {"", "0.0.0.0", "::"}  # noqa: S104


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` -> both. Raises `ChannelClosed`, as addresses come from peers."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ChannelClosed(f"{address!r} is not an address")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(bind: str, advertise: str | None) -> str:
    """What to tell peers: the advertised name, else the bound address, else the one we would go out from."""
    if advertise:
        return advertise
    if bind not in _WILDCARDS:
        return bind
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; a datagram socket sends nothing here
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def cannot_listen(host: str, port: int, error: OSError) -> ShoalError:
    """SH-SERVE-01 if the port is the trouble, SH-SERVE-02 if the address is."""
    if error.errno == errno.EADDRINUSE:
        return ShoalError(
            "SH-SERVE-01",
            f"port {port} on {host} is in use by another process",
            f"stop that process, or choose another port than {port}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ShoalError(
            "SH-SERVE-01", f"port {port} on {host} is not ours to open", "choose a port above 1023"
        )
    return ShoalError(
        "SH-SERVE-02",
        f"cannot listen on {host}: {error.strerror or error}",
        "bind to one of this machine's addresses, or to 0.0.0.0 for all of them",
    )
