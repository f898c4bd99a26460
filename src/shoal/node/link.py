"""The line to the coordinator: opened again whenever it breaks, and the peer list that comes over it.

In flow messages to send; out flow what the coordinator says, as events. Invariant: a message that cannot be sent
now is dropped, never queued: the machine says everything again until it sees its effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import structs

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host, Peer
from shoal.base.ids import NodeId
from shoal.node.events import Asked, Connected, Disconnected, Event, Heard
from shoal.node.session import Invitation, KeptWaiting, open_session, refused
from shoal.wire.ballots import AskVote, Propose
from shoal.wire.identity import Identity
from shoal.wire.messages import Goodbye, Message, Peers, Refuse, Welcome, decode, encode

_ASKED = (AskVote, Propose)
FIRST_WAIT_S, SOON_WAIT_S, MAX_WAIT_S = 0.2, 1.0, 5.0
SOON_S = 30.0
"""For so long after a break attempts stay close to one another: somebody may be about to take over."""
SILENT_BEATS, SILENT_S = 3, 5.0
"""A coordinator that has answered none of so many heartbeats, for so long at least, has hung."""
MAX_COORDINATORS, MAX_ADDRESS = 8, 256
MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 0.1, 300.0


def updated(known: Peers, message: Peers) -> Peers:
    """The list of peers after this message; as it was, if the message is of changes to a list that is not here."""
    if not message.since:
        return message
    if message.since != known.edition:
        return known  # The next heartbeat says which list is here, and is answered with a whole one.
    peers = {peer.node: peer for peer in known.peers if peer.node not in set(message.gone)}
    peers.update({peer.node: peer for peer in message.peers})
    return structs.replace(message, peers=tuple(peers.values()), since=0, gone=())


class ControlLink:
    """One node's connection to its coordinator, through all its breaks."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        invitation: Invitation,
        post: Callable[[Event], None],
        keep: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`keep` is told where the run's coordinators are, whenever that changes."""
        self.heartbeat_s = 2.0
        self._host = host
        self._identity = identity
        self._invitation = invitation
        self._post = post
        self._keep = keep
        self.told: tuple[str, ...] = ()
        """Where the coordinator said that coordinators are, lately or before this start."""
        self._channel: Channel | None = None
        self._left = False
        self._heard_at = 0.0
        self._peers = Peers(edition=0, peers=())
        self._known: tuple[Peers, dict[NodeId, Peer], Peer] | None = None
        """What `sources` made of a peer list: it is asked for every blob, and the list seldom changes."""

    async def stay_connected(self, blob_address: str, length: Callable[[], int], give_up_s: float) -> None:
        """Connect, listen, and connect again, until goodbye. Raises SH-JOIN-05 if the first time takes too long, or
        the coordinator's refusal."""
        began, wait, welcomed = self._host.clock.now(), FIRST_WAIT_S, False
        while not self._left:
            try:
                channel, welcome = await open_session(
                    self._host,
                    self._identity,
                    self._where(),
                    blob_address=blob_address,
                    length=length(),
                    asked=self._hear,
                )
            except ChannelClosed as error:
                away_s = self._host.clock.now() - began
                # A member stays where it is kept waiting: its vote may be the one that is missing.
                votes = isinstance(error, KeptWaiting) and length() > 0
                if not welcomed and not votes and away_s > give_up_s:
                    raise self._unreachable(error) from None
                await self._host.clock.sleep(wait * (0.5 + self._host.random.random()))
                wait = min(wait * 2, SOON_WAIT_S if away_s < SOON_S else MAX_WAIT_S)
                continue
            wait, welcomed = FIRST_WAIT_S, True
            self.heartbeat_s = min(max(welcome.heartbeat_s, MIN_HEARTBEAT_S), MAX_HEARTBEAT_S)
            await self._listen(channel, welcome)
            began = self._host.clock.now()

    def _where(self) -> Invitation:
        """The ticket's addresses, and those that the coordinator has told of since."""
        every = dict.fromkeys((*self._invitation.addresses, *self.told))
        return replace(self._invitation, addresses=tuple(every))

    async def _listen(self, channel: Channel, welcome: Welcome) -> None:
        self._channel = channel
        # A coordinator that was restarted counts its lists anew; the old one serves until the first arrives.
        self._peers = structs.replace(self._peers, edition=0)
        self._heard_at = self._host.clock.now()
        refusal: Refuse | None = None
        self._post(Connected())
        self._post(Heard(welcome))
        try:
            while True:
                message = decode(await channel.recv())
                self._heard_at = self._host.clock.now()
                if isinstance(message, Refuse):
                    refusal = message
                    break
                if isinstance(message, Peers) and message.edition > self._peers.edition:
                    self._peers = updated(self._peers, message)
                    await self._remember(self._peers.coordinators)
                self._hear(message, channel)
        except (ChannelClosed, ShoalError):
            pass
        self._channel = None
        self._post(Disconnected())
        await channel.close()
        if refusal is not None:
            raise refused(refusal)

    async def _remember(self, coordinators: tuple[str, ...]) -> None:
        told = [address for address in coordinators if 0 < len(address) <= MAX_ADDRESS]
        if told and tuple(told[:MAX_COORDINATORS]) != self.told:
            self.told = tuple(told[:MAX_COORDINATORS])
            await self._host.work(partial(self._keep, self.told))

    def _hear(self, message: Message, channel: Channel) -> None:
        if isinstance(message, _ASKED):
            self._post(Asked(message, channel))
        else:
            self._post(Heard(message))

    async def send(self, message: Message) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed):
                await self._channel.send(encode(message))

    async def hang_up_on_silence(self) -> None:
        """Leave a coordinator that answers no more, for another may have taken over. Called at every heartbeat."""
        patience_s = max(SILENT_BEATS * self.heartbeat_s, SILENT_S)
        if self._channel is not None and self._host.clock.now() - self._heard_at > patience_s:
            await self._channel.close()

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
        if self._known is None or self._known[0] is not self._peers:
            self._known = (self._peers, *self._look_up())
        _, known, last = self._known
        first = [node for node in holders if node in known]
        if not first:
            return [*known.values(), last]
        self._host.random.shuffle(first)
        rest = [peer for node, peer in known.items() if node not in first]
        return [*(known[node] for node in first), *rest, last]

    def _look_up(self) -> tuple[dict[NodeId, Peer], Peer]:
        """The peers of the list, and the coordinator."""
        known = {peer.node: Peer(node=peer.node, address=peer.address) for peer in self._peers.peers}
        known.pop(self._identity.node, None)
        coordinator = self._invitation.coordinator
        return known, known.pop(coordinator, None) or Peer(node=coordinator, address="")

    def _unreachable(self, error: ChannelClosed) -> ShoalError:
        where = ", ".join(self._invitation.addresses)
        return ShoalError(
            "SH-JOIN-05",
            f"the coordinator does not answer at {where}: {error}",
            "check that it runs and that a firewall lets you out; `shoal doctor TICKET` names the failing hop",
        )
