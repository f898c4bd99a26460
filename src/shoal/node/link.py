"""The line to the coordinator: opened again whenever it breaks, and the peer list that comes over it.

In flow messages to send; out flow what the coordinator says, as events. Invariant: a message that cannot be sent
now is dropped, never queued: the machine says everything again until it sees its effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host, Peer
from shoal.base.ids import NodeId
from shoal.node.events import Connected, Disconnected, Event, Heard
from shoal.node.session import Invitation, open_session
from shoal.wire.identity import Identity
from shoal.wire.messages import Goodbye, Message, Peers, Welcome, decode, encode

FIRST_WAIT_S, MAX_WAIT_S = 0.2, 5.0
MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 0.1, 60.0


class ControlLink:
    """One node's connection to its coordinator, through all its breaks."""

    def __init__(
        self, host: Host, identity: Identity, invitation: Invitation, post: Callable[[Event], None]
    ) -> None:
        self.heartbeat_s = 2.0
        self._host = host
        self._identity = identity
        self._invitation = invitation
        self._post = post
        self._channel: Channel | None = None
        self._left = False
        self._peers = Peers(edition=0, peers=())

    async def stay_connected(self, blob_address: str, length: Callable[[], int], give_up_s: float) -> None:
        """Connect, listen, and connect again, until goodbye. Raises SH-JOIN-05 if the first time takes too long, or
        the coordinator's refusal."""
        began, wait, welcomed = self._host.clock.now(), FIRST_WAIT_S, False
        while not self._left:
            try:
                channel, welcome = await open_session(
                    self._host, self._identity, self._invitation, blob_address=blob_address, length=length()
                )
            except ChannelClosed as error:
                if not welcomed and self._host.clock.now() - began > give_up_s:
                    raise self._unreachable(error) from None
                await self._host.clock.sleep(wait * (0.5 + self._host.random.random()))
                wait = min(wait * 2, MAX_WAIT_S)
                continue
            wait, welcomed = FIRST_WAIT_S, True
            self.heartbeat_s = min(max(welcome.heartbeat_s, MIN_HEARTBEAT_S), MAX_HEARTBEAT_S)
            await self._listen(channel, welcome)

    async def _listen(self, channel: Channel, welcome: Welcome) -> None:
        self._channel = channel
        # A coordinator that was restarted counts its lists anew; the old one serves until the first arrives.
        self._peers = Peers(edition=0, peers=self._peers.peers)
        self._post(Connected())
        self._post(Heard(welcome))
        try:
            while True:
                message = decode(await channel.recv())
                if isinstance(message, Peers) and message.edition > self._peers.edition:
                    self._peers = message
                self._post(Heard(message))
        except (ChannelClosed, ShoalError):
            pass
        self._channel = None
        self._post(Disconnected())
        await channel.close()

    async def send(self, message: Message) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._channel.send(encode(message))

    async def say_goodbye(self, reason: str) -> None:
        self._left = True  # A connection opened now would push the goodbye off the old one.
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(ChannelClosed):
                await channel.send(encode(Goodbye(reason=reason)))
            await channel.close()

    @property
    def edition(self) -> int:
        """Which peer list this node has."""
        return self._peers.edition

    def sources(self, holders: tuple[NodeId, ...] = ()) -> list[Peer]:
        """Who to ask for a blob: those known to hold it, then everyone, the coordinator last."""
        known = {peer.node: peer.address for peer in self._peers.peers if peer.node != self._identity.node}
        coordinator = self._invitation.coordinator
        last = Peer(node=coordinator, address=known.pop(coordinator, ""))
        first = [node for node in holders if node in known]
        self._host.random.shuffle(first)
        rest = [node for node in known if node not in first]
        return [*(Peer(node=node, address=known[node]) for node in [*first, *rest]), last]

    def _unreachable(self, error: ChannelClosed) -> ShoalError:
        where = ", ".join(self._invitation.addresses)
        return ShoalError(
            "SH-JOIN-05",
            f"the coordinator does not answer at {where}: {error}",
            "check that it runs and that a firewall lets you out; `shoal doctor TICKET` names the failing hop",
        )
