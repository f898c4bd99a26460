"""Every hop from here to a ticket's coordinator, by name.

In flows a ticket; out flow `Check`s, up to the first that fails. Invariant: the coordinator's identity is
checked before anything is said to it, and what is said never joins the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.apps.doctor_checks import Check
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Peer
from shoal.base.units import show_duration
from shoal.node.session import Invitation, open_session
from shoal.wire.identity import Identity
from shoal.wire.messages import Challenge, Peers, decode
from shoal.wire.ticket import Ticket, read_ticket
from shoal.wire.versions import HERE, agree, version_error
from shoal.worlds.real.addresses import split_address
from shoal.worlds.real.channels import ChannelLimits, connect
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.tls import WrongNode, client_context

HOP_S = 10.0
APART_S = 30.0
"""Clocks that differ by no more are taken to agree: the answer may have been on its way for a while."""


@dataclass(frozen=True, slots=True)
class _Broken(Exception):
    """The hop that failed; those after it cannot be tried."""

    check: Check


async def check_hops(text: str) -> list[Check]:
    """All hops; where the ticket has several addresses, those of the first that works, else of the last."""
    try:
        ticket = read_ticket(text)
    except ShoalError as error:
        return [_failed("ticket", error)]
    where = ", ".join(ticket.addresses) or "no address"
    checks = [_ok("ticket", f"run {ticket.run[:12]}, coordinator {ticket.coordinator[:12]} at {where}")]
    hops: list[Check] = []
    for address in ticket.addresses:
        hops = await _check_address(ticket, address)
        if all(check.verdict != "fail" for check in hops):
            break
    return checks + hops


async def _check_address(ticket: Ticket, address: str) -> list[Check]:
    done: list[Check] = []
    try:
        host, port = _split(address)
        done.append(await _resolve(host, port))
        done.append(await _connect(host, port))
        done += await _shake_hands(ticket, host, port)
        done += await _challenge(ticket, address)
    except _Broken as broken:
        return [*done, broken.check]
    return [*done, *await _ask(ticket)]


def _split(address: str) -> tuple[str, int]:
    try:
        return split_address(address)
    except ChannelClosed as error:
        raise _Broken(_unreachable("address", str(error), "ask the organiser for a new ticket")) from None


async def _resolve(host: str, port: int) -> Check:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(HOP_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, TimeoutError) as error:
        remedy = f"check the spelling of {host}, and this machine's name servers"
        raise _Broken(_unreachable("name", f"{host} does not resolve: {_words(error)}", remedy)) from None
    return _ok("name", f"{host} is {', '.join(sorted({str(item[4][0]) for item in found}))}")


async def _connect(host: str, port: int) -> Check:
    try:
        async with asyncio.timeout(HOP_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        remedy = "check that `shoal serve` runs there, and that firewalls on both sides let this port through"
        raise _Broken(_unreachable("tcp", f"{host}:{port}: {_words(error)}", remedy)) from None
    await _close(writer)
    return _ok("tcp", f"{host}:{port} accepts connections")


async def _shake_hands(ticket: Ticket, host: str, port: int) -> list[Check]:
    try:
        async with asyncio.timeout(HOP_S):
            _, writer = await asyncio.open_connection(
                host, port, ssl=client_context(ticket.coordinator), server_hostname=host
            )
    except WrongNode as wrong:
        remedy = "ask the organiser for a fresh ticket; if it names the same node, somebody intercepts you"
        found = f"answers as {wrong.found[:16]}, the ticket says {wrong.expected[:16]}"
        failed = Check(name="identity", verdict="fail", found=found, remedy=remedy, code="SH-JOIN-07")
        raise _Broken(failed) from None
    except (ssl.SSLError, OSError, TimeoutError) as error:
        remedy = (
            "the coordinator hangs, something else listens on this port, or a proxy cuts TLS 1.3: ask the organiser "
            "whether it runs, and for the port"
        )
        raise _Broken(_unreachable("tls", _words(error), remedy)) from None
    version = writer.get_extra_info("ssl_object").version()
    await _close(writer)
    return [_ok("tls", str(version)), _ok("identity", f"it is coordinator {ticket.coordinator[:16]}")]


async def _challenge(ticket: Ticket, address: str) -> list[Check]:
    try:
        async with asyncio.timeout(HOP_S):
            channel = await connect(address, ticket.coordinator, Meter(), ChannelLimits())
            clocks = compare_clocks(time.time(), channel.opened_at())
            frame = await channel.recv()
            await channel.close()
            message = decode(frame)
    except (ChannelClosed, TimeoutError) as error:
        remedy = "a proxy may cut WebSockets; try another network"
        raise _Broken(_unreachable("protocol", _words(error), remedy)) from None
    except ShoalError as error:
        raise _Broken(_failed("protocol", error)) from None
    if not isinstance(message, Challenge):
        raise _Broken(_unreachable("protocol", "it did not begin with a challenge", "ask the organiser"))
    version = agree(HERE, message.speaks)
    if version is None:
        raise _Broken(_failed("protocol", version_error(message.speaks)))
    return [_ok("protocol", f"version {version} on both sides"), *clocks]


def compare_clocks(here_s: float, there_s: float | None) -> list[Check]:
    """This machine's clock beside the coordinator's, where that says what time it is."""
    if there_s is None:
        return []
    apart_s = here_s - there_s
    if abs(apart_s) <= APART_S:
        return [_ok("clocks", "this machine's and the coordinator's agree")]
    how = f"{show_duration(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'}"
    remedy = "set the one that is wrong: tickets that expire, bans and monthly limits go by them"
    return [
        Check(
            name="clocks", verdict="warn", found=f"this machine's is {how} the coordinator's", remedy=remedy
        )
    ]


async def _ask(ticket: Ticket) -> list[Check]:
    """Would the run let a newcomer with this ticket in, and take its updates? A fresh identity asks, and does not
    join."""
    identity = Identity.generate()
    async with RealHost(identity, FileDisk(Path(tempfile.gettempdir()))) as host:
        try:
            channel, welcome = await open_session(
                host,
                identity,
                Invitation.from_ticket(ticket, "doctor"),
                blob_address="",
                length=0,
                probe=True,
            )
        except ChannelClosed as error:
            return [_unreachable("token and run", _words(error), "try again; the connection broke")]
        except ShoalError as error:
            return [_failed("token and run", error)]
        relay = await _relay_of(channel)
        await channel.close()
        found = f"it would let this machine in; its log has {welcome.length} entries"
        return [_ok("token and run", found), await _check_relay(host, ticket, relay)]


async def _relay_of(channel: Channel) -> Peer | None:
    """Where the coordinator takes and gives blobs, by its own word; None where it is too old to say."""
    with contextlib.suppress(ChannelClosed, ShoalError, TimeoutError):
        async with asyncio.timeout(HOP_S):
            message = decode(await channel.recv())
            if isinstance(message, Peers) and message.peers:
                return Peer(node=message.peers[0].node, address=message.peers[0].address)
    return None


async def _check_relay(host: RealHost, ticket: Ticket, relay: Peer | None) -> Check:
    """The coordinator's blob port: who takes no connections (NAT) leaves its updates there, and anybody finds there
    what no peer gives."""
    if relay is None:
        return Check(name="relay", verdict="warn", found="the coordinator does not say where its blobs are")
    try:
        address, port = split_address(relay.address)
        await _connect(address, port)
        await host.get(relay, f"{ticket.run}/proof", 0, 1, timeout_s=HOP_S)
    except _Broken as broken:
        found, remedy = (
            broken.check.found,
            "let its blob port (--blob-port) through the firewalls on both sides",
        )
        return _unreachable("relay", found, remedy)
    except (ChannelClosed, ShoalError) as error:
        remedy = "something else answers at the coordinator's blob port, or cuts TLS: ask the organiser"
        return _unreachable("relay", f"{relay.address}: {_words(error)}", remedy)
    return _ok("relay", f"{relay.address} relays blobs for machines that nobody can reach")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()


def _ok(name: str, found: str) -> Check:
    return Check(name=name, verdict="ok", found=found)


def _failed(name: str, error: ShoalError) -> Check:
    return Check(name=name, verdict="fail", found=error.cause, remedy=error.next_step, code=error.code)


def _unreachable(name: str, found: str, remedy: str) -> Check:
    return Check(name=name, verdict="fail", found=found, remedy=remedy, code="SH-JOIN-05")


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {HOP_S:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
