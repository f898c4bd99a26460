"""The ticket that `shoal join` takes: who the coordinator is, where, which run, and a join token."""

from __future__ import annotations

import base64
import binascii

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId

PREFIX = "shoal1-"


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    coordinator: NodeId
    addresses: tuple[str, ...]
    """Control addresses, `host:port`, tried in order."""
    run: RunId
    token: str


def show_ticket(ticket: Ticket) -> str:
    encoded = base64.urlsafe_b64encode(msgspec.msgpack.encode(ticket)).decode()
    return PREFIX + encoded.rstrip("=")


def read_ticket(text: str) -> Ticket:
    """Parse a ticket. Raises SH-JOIN-01."""
    text = text.strip()
    if not text.startswith(PREFIX):
        raise _unreadable(f"it does not begin with {PREFIX!r}")
    body = text.removeprefix(PREFIX)
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.msgpack.decode(raw, type=Ticket)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise _unreadable("it is damaged or cut short") from None


def _unreadable(why: str) -> ShoalError:
    return ShoalError(
        "SH-JOIN-01", f"this is not a ticket: {why}", "copy the whole line that `shoal serve` printed"
    )
