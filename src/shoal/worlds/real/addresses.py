"""Addresses as text, and ports that can be opened or not.

In flow `host:port` texts and the system's errors; out flow pairs and errors that people can act on.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from shoal.base.errors import ChannelClosed, ShoalError

_WILDCARDS = {"", "0.0.0.0", "::"}  # noqa: S104


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` -> both. Raises `ChannelClosed`, as addresses come from peers."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not colon or not 0 < number < 65536:
        raise ChannelClosed(f"{address[:80]!r} is not an address")
    if not _may_be_host(host):
        raise ChannelClosed(f"no host can have the name {host[:80]!r}")
    return host, number


def _may_be_host(host: str) -> bool:
    """False for what the system's resolver does not even take: it raises `ValueError` then, not `OSError`."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and host.isprintable() and not set(host) & set(" /?#@[]\\")


def _is_v6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(bind: str, advertise: str | None) -> str:
    """What to tell peers: the advertised name, else the bound address, else the one we would go out from. Raises
    SH-SERVE-02 if nobody could reach what is advertised."""
    if advertise:
        host = advertise.removeprefix("[").removesuffix("]")
        if not _may_be_host(host) or (":" in host and not _is_v6(host)):
            raise ShoalError(
                "SH-SERVE-02",
                f"nobody can reach {advertise[:80]!r}",
                "give --advertise a name or an address without a port",
            )
        return host
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
