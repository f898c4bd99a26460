"""A node's side of the handshake: prove who it is, and hear whether it is wanted.

In flows a channel; out flows a welcome, or an error with the coordinator's own words. Invariant: nothing is
sent to a coordinator before the channel has shown that it is the one the ticket names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.base.errors import CODES, ChannelClosed, ShoalError
from shoal.base.host import Channel, Host
from shoal.base.ids import NodeId, RunId
from shoal.runlog.keys import Revocation, shown_line
from shoal.wire.ballots import AskVote, Propose
from shoal.wire.identity import Identity, Signer
from shoal.wire.messages import Challenge, Entries, Hello, Proof, Refuse, Welcome, decode, encode
from shoal.wire.signed import sign
from shoal.wire.ticket import Ticket
from shoal.wire.versions import HERE, Speaking, Speaks, agree, version_error
from shoal.wire.work import MOST_BITS, find_work

HANDSHAKE_S = 15.0
Session = tuple[Channel, Welcome]
Asked = Callable[[AskVote | Propose | Entries, Channel], None]
"""A coordinator that does not lead yet wants a vote, or brings what a voter lacks, before it can welcome anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a node needs to be let in."""

    coordinator: NodeId
    addresses: tuple[str, ...]
    run: RunId
    token: str
    name: str = ""
    min_price_micro: int = 0
    """For less than this a unit of work the node does not want any."""
    work: int = 0
    """The proof of work, where one was asked for and found."""
    hybrid: bool = False
    """Show hybrid keys, which the run asks for."""
    revoke: str = ""
    """Do not join: say that none of this node's keys counts any more, for this reason."""
    speaks: Speaks = HERE
    """The versions of the wire that the node speaks."""

    @staticmethod
    def from_ticket(ticket: Ticket, name: str, min_price_micro: int = 0) -> Invitation:
        return Invitation(
            coordinator=ticket.coordinator,
            addresses=ticket.addresses,
            run=ticket.run,
            token=ticket.token,
            name=name,
            min_price_micro=min_price_micro,
        )


async def open_session(
    host: Host,
    identity: Identity,
    invitation: Invitation,
    *,
    blob_address: str,
    length: int,
    probe: bool = False,
    asked: Asked | None = None,
) -> Session:
    """Connect and be welcomed (only asking, with `probe`), at whichever address answers first. Raises `ChannelClosed`
    if that may work later, `ShoalError` if it never will."""

    async def attempt(address: str) -> Session:
        return await _open_at(host, identity, invitation, address, blob_address, length, probe, asked)

    addresses = invitation.addresses
    if len(addresses) == 1:
        return await attempt(addresses[0])
    return await _first_welcome([attempt(address) for address in addresses])


async def _first_welcome(attempts: list[Coroutine[Any, Any, Session]]) -> Session:
    """The first success; the others are given up. A refusal counts only if nobody else says yes."""
    if not attempts:
        raise ChannelClosed("the ticket has no address")
    waiting = {asyncio.ensure_future(attempt) for attempt in attempts}
    failures: list[BaseException] = []
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            welcomed = [task.result() for task in done if task.exception() is None]
            for channel, _ in welcomed[1:]:
                await channel.close()
            if welcomed:
                return welcomed[0]
            failures += [error for task in done if (error := task.exception()) is not None]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    # What somebody said counts more than that somebody waits, and that more than silence.
    raise min(
        failures, key=lambda error: (isinstance(error, ChannelClosed), not isinstance(error, KeptWaiting))
    )


async def _open_at(
    host: Host,
    identity: Identity,
    invitation: Invitation,
    address: str,
    blob_address: str,
    length: int,
    probe: bool,
    asked: Asked | None,
) -> Session:
    try:
        return await _try_at(host, identity, invitation, address, blob_address, length, probe, asked)
    except HybridAsked as wanted:
        if invitation.hybrid:
            raise wanted.refusal from None
        both = replace(invitation, hybrid=True)
        return await _open_at(host, identity, both, address, blob_address, length, probe, asked)
    except WorkAsked as wanted:
        if invitation.work or wanted.bits > MOST_BITS:
            raise wanted.refusal from None
        work = await host.work(partial(find_work, invitation.run, identity.node, wanted.bits))
        worked = replace(invitation, work=work)
        return await _try_at(host, identity, worked, address, blob_address, length, probe, asked)


async def _try_at(
    host: Host,
    identity: Identity,
    invitation: Invitation,
    address: str,
    blob_address: str,
    length: int,
    probe: bool,
    asked: Asked | None,
) -> Session:
    channel, greeted = await host.connect(address, invitation.coordinator), False
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            speaking = await _greet(channel, identity, invitation, blob_address, length, probe)
            greeted = True
            return await _be_welcomed(speaking, asked)
    except TimeoutError:
        await channel.close()
        if greeted:
            raise KeptWaiting(
                f"{address} answers, but lets nobody in: perhaps no coordinator leads"
            ) from None
        raise ChannelClosed(f"{address} did not answer the handshake") from None
    except BaseException:
        await channel.close()
        raise


async def _greet(
    channel: Channel,
    identity: Identity,
    invitation: Invitation,
    blob_address: str,
    length: int,
    probe: bool,
) -> Channel:
    """Answer the coordinator's challenge."""
    challenge = decode(await channel.recv())
    if not isinstance(challenge, Challenge):
        raise ChannelClosed("the coordinator did not begin with a challenge")
    version = agree(invitation.speaks, challenge.speaks)
    if version is None:
        raise version_error(challenge.speaks, invitation.speaks)
    channel = Speaking(channel, version)
    proof = Proof(run=invitation.run, coordinator=invitation.coordinator, nonce=challenge.nonce)
    speaker: Signer = identity.hybrid if invitation.hybrid else identity
    revocation = Revocation(run=invitation.run, node=identity.node, reason=invitation.revoke)
    hello = Hello(
        protocol=version,
        run=invitation.run,
        public=identity.first.public,
        token=invitation.token,
        name=invitation.name,
        address=blob_address,
        length=length,
        proof=sign(speaker, proof),
        min_price_micro=invitation.min_price_micro,
        probe=probe,
        work=invitation.work,
        hybrid=identity.first.hybrid.public if invitation.hybrid else b"",
        line=shown_line(identity, hybrid=invitation.hybrid),
        revoke=sign(speaker, revocation) if invitation.revoke else None,
    )
    await channel.send(encode(hello))
    return channel


async def _be_welcomed(channel: Channel, asked: Asked | None) -> Session:
    while True:
        answer = decode(await channel.recv())
        if isinstance(answer, Refuse):
            if answer.hybrid:
                raise HybridAsked(refused(answer))
            if answer.work_bits:
                raise WorkAsked(answer.work_bits, refused(answer))
            raise refused(answer)
        if isinstance(answer, Welcome):
            return channel, answer
        if isinstance(answer, AskVote | Propose | Entries) and asked is not None:
            asked(answer, channel)


class KeptWaiting(ChannelClosed):
    """A coordinator took our greeting, and then neither let us in nor sent us away: it waits for something itself."""


class HybridAsked(Exception):
    """The run asks for hybrid keys."""

    def __init__(self, refusal: ShoalError) -> None:
        super().__init__("hybrid keys")
        self.refusal = refusal


class WorkAsked(Exception):
    """The coordinator wants a proof of so much work."""

    def __init__(self, bits: int, refusal: ShoalError) -> None:
        super().__init__(f"{bits} bits")
        self.bits, self.refusal = bits, refusal


def refused(refuse: Refuse) -> ShoalError:
    """The coordinator's words; a code that only its own version knows stands among them."""
    if refuse.code in CODES:
        return ShoalError(refuse.code, refuse.cause, refuse.next_step)
    return ShoalError("SH-JOIN-06", f"{refuse.cause} ({refuse.code[:32]})", refuse.next_step)
