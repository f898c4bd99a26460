"""Where a lent machine may be a hub: said by its owner, told with its offers, checked on both sides.

In flow HOST:PORT; out flow what others connect to and what this machine listens on. Invariant: a hub's three ports lie
side by side, and there are three.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.worlds.real.addresses import join_address, split_address

HUB_PORTS = 3
"""For its members' control channels, for blobs, and for other hubs."""
LAST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """Where others reach this machine if it is a hub: there and at the next two ports."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)

    @property
    def bind(self) -> str:
        """What to listen on: behind a router this machine does not have the address that others use."""
        if self.host in ("localhost", "::1") or self.host.startswith("127."):
            return self.host
        return "::" if ":" in self.host else "0.0.0.0"  # noqa: S104 (a hub is to be reached)


def read_hub_address(text: str) -> HubAddress:
    """HOST:PORT. Raises SH-POOL-03."""
    try:
        host, port = split_address(text)
    except ChannelClosed as error:
        raise no_hub(str(error)) from None
    if port + HUB_PORTS - 1 > LAST_PORT:
        raise no_hub(f"a hub has {HUB_PORTS} ports, and there are not so many from {port} on")
    return HubAddress(host=host, port=port)


def no_hub(cause: str) -> ShoalError:
    return ShoalError("SH-POOL-03", cause, "give the address that others reach: --hub-address HOST:PORT")
