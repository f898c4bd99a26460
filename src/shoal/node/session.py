"""A node's side of the handshake: prove who it is, and hear whether it is wanted.

In flows a channel; out flows a welcome, or an error with the coordinator's own words. Invariant: nothing is
sent to a coordinator before the channel has shown that it is the one the ticket names.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from shoal.base.errors import CODES, ChannelClosed, ShoalError
from shoal.base.host import Channel, Host
from shoal.base.ids import NodeId, RunId
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    PROTOCOL,
    Challenge,
    Hello,
    Proof,
    Refuse,
    Welcome,
    decode,
    encode,
    version_error,
)
from shoal.wire.signed import sign
from shoal.wire.ticket import Ticket

HANDSHAKE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a node needs to be let in."""

    coordinator: NodeId
    addresses: tuple[str, ...]
    run: RunId
    token: str
    name: str = ""

    @staticmethod
    def from_ticket(ticket: Ticket, name: str) -> Invitation:
        return Invitation(
            coordinator=ticket.coordinator,
            addresses=ticket.addresses,
            run=ticket.run,
            token=ticket.token,
            name=name,
        )


async def open_session(
    host: Host,
    identity: Identity,
    invitation: Invitation,
    *,
    blob_address: str,
    length: int,
    probe: bool = False,
) -> tuple[Channel, Welcome]:
    """Connect and be welcomed (only asking, with `probe`). Raises `ChannelClosed` if that may work later,
    `ShoalError` if it never will."""
    failure = ChannelClosed("the ticket has no address")
    for address in invitation.addresses:
        try:
            channel = await host.connect(address, invitation.coordinator)
        except ChannelClosed as error:
            failure = error
            continue
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return channel, await _greet(channel, identity, invitation, blob_address, length, probe)
        except TimeoutError:
            failure = ChannelClosed(f"{address} did not answer the handshake")
        except ChannelClosed as error:
            failure = error
        except BaseException:
            await channel.close()
            raise
        await channel.close()
    raise failure


async def _greet(
    channel: Channel,
    identity: Identity,
    invitation: Invitation,
    blob_address: str,
    length: int,
    probe: bool,
) -> Welcome:
    challenge = decode(await channel.recv())
    if not isinstance(challenge, Challenge):
        raise ChannelClosed("the coordinator did not begin with a challenge")
    if challenge.protocol != PROTOCOL:
        raise version_error(challenge.protocol)
    proof = Proof(run=invitation.run, coordinator=invitation.coordinator, nonce=challenge.nonce)
    hello = Hello(
        protocol=PROTOCOL,
        run=invitation.run,
        public=identity.public,
        token=invitation.token,
        name=invitation.name,
        address=blob_address,
        length=length,
        proof=sign(identity, proof),
        probe=probe,
    )
    await channel.send(encode(hello))
    while True:
        answer = decode(await channel.recv())
        if isinstance(answer, Refuse):
            raise _refused(answer)
        if isinstance(answer, Welcome):
            return answer


def _refused(refuse: Refuse) -> ShoalError:
    """The coordinator's words; a code that only its own version knows stands among them."""
    if refuse.code in CODES:
        return ShoalError(refuse.code, refuse.cause, refuse.next_step)
    return ShoalError("SH-JOIN-06", f"{refuse.cause} ({refuse.code[:32]})", refuse.next_step)
