"""A node's connection, from the challenge to its loss.

In flow channels; out flow arrivals, what nodes say, and losses, as events for their runs. Invariant: nobody is heard
who has not proved its key and been let in, and each member only as often as its allowance says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import MEND_STORE
from shoal.coordinator.admission import clean_name, judge_caller, node_of, not_served
from shoal.coordinator.doorkeeping import Allowance, Doorkeeper
from shoal.coordinator.electing import Elections
from shoal.coordinator.events import Arrived, Event, Lost, RevokeAsked, Said
from shoal.coordinator.keyring import not_a_member, read_keys, revocation_in, revoked
from shoal.coordinator.served import Connection, Run
from shoal.runlog.keys import Revocation
from shoal.wire.ballots import Follow, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.messages import Challenge, Hello, Message, PeerAddress, Peers, Refuse, Welcome, decode, encode
from shoal.wire.signed import parse
from shoal.wire.versions import Speaking, Speaks, stamped

log = logging.getLogger(__name__)

_VOTES = (Vote, Stored)
HANDSHAKE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Of one coordinator, for all its runs."""

    host: Host
    identity: Identity
    speaks: Speaks
    doorkeeper: Doorkeeper
    elections: Elections
    runs: Mapping[RunId, Run]
    broken: Mapping[RunId, ShoalError]
    post: Callable[[RunId, Event], Awaitable[None]]
    is_ready: Callable[[], bool]
    is_full: Callable[[], bool]
    """Whether as many events wait as may."""
    blob_address: Callable[[], str]

    async def serve(self, channel: Channel) -> None:
        """One node's connection, from challenge to loss."""
        if (
            not self.is_ready()
        ):  # Standing by, or reading the logs: whoever comes goes elsewhere, and comes again.
            await channel.close()
            return
        admitted = await self._admit(channel)
        if admitted is None:
            await channel.close()
            return
        channel.admit()
        run_id, hello = admitted
        channel = Speaking(channel, hello.protocol)
        shown = read_keys(hello, self.runs[run_id].machine.view) if run_id in self.runs else None
        if isinstance(shown, Refuse):  # Its keys were revoked while it was being let in.
            await channel.close()
            return
        arrived = Arrived(
            node=node_of(hello),
            public=shown.public if shown else hello.public,
            line=shown.line if shown else (),
            name=clean_name(hello.name),
            address=hello.address[:200],
            length=max(0, hello.length),
            min_price_micro=max(0, hello.min_price_micro),
        )
        await self._converse(run_id, Connection(channel, arrived))

    async def _converse(self, run_id: RunId, connection: Connection) -> None:
        """Listen to a node until its channel breaks."""
        channel, node = connection.channel, connection.arrived.node
        if run_id in self.runs:
            await self.seat(self.runs[run_id], connection)
        elif not self.elections.hold(run_id, node, connection):
            await channel.close()
            return
        writer = asyncio.get_running_loop().create_task(connection.write(), name=f"write to {node[:8]}")
        try:
            allowance = Allowance(self.host.clock.now())
            while True:
                await self._hear(run_id, node, decode(await channel.recv()))
                if pause_s := allowance.wait_s(self.host.clock.now()):
                    await self.host.clock.sleep(pause_s)
        except (ChannelClosed, ShoalError):
            pass
        writer.cancel()
        await channel.close()
        self.elections.let_go(run_id, node, connection)
        run = self.runs.get(run_id)
        if run is not None and run.connections.get(node) is connection:
            del run.connections[node]
            await self.post(run_id, Lost(node))

    async def _hear(self, run_id: RunId, node: NodeId, message: Message) -> None:
        if isinstance(message, _VOTES):
            self.elections.hears(run_id, node, message)
        elif run_id not in self.elections.contests:
            await self.post(run_id, Said(node, message))
        elif not self.is_full():
            # While an entry waits for votes nothing else is taken: what is left out is said again.
            await self.post(run_id, Said(node, message))

    async def seat(self, run: Run, connection: Connection) -> None:
        node = connection.arrived.node
        had, has = connection.arrived.length, run.machine.view.length
        if (
            had > has
        ):  # It may lie; but whoever put an old store in place should not have to guess why nothing moves.
            cause = f"its copy of the log has {had} entries, this coordinator's store {has}: {MEND_STORE}"
            log.warning(
                "node_is_ahead", extra={"run": run.machine.run[:12], "node": node[:12], "cause": cause}
            )
        old = run.connections.get(node)
        run.connections[node] = connection
        if old is not None:
            await old.channel.close()
        await self.post(run.machine.run, connection.arrived)

    async def _admit(self, channel: Channel) -> tuple[RunId, Hello] | None:
        nonce = self.host.random.randbytes(32)
        oldest, newest = self.speaks
        challenge = Challenge(protocol=oldest, coordinator=self.identity.node, nonce=nonce, newest=newest)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await channel.send(stamped(encode(challenge), oldest))
                first = decode(await channel.recv())
                if isinstance(first, Hello):
                    return await self._greet(channel, first, nonce)
        except ShoalError as error:
            with contextlib.suppress(ChannelClosed):
                refuse = Refuse(code=error.code, cause=error.cause, next_step=error.next_step)
                await channel.send(stamped(encode(refuse), oldest))
            return None
        except (ChannelClosed, TimeoutError):
            return None
        if isinstance(first, Follow):
            await self.elections.serve_line(channel, first, nonce)
        return None

    async def _greet(self, channel: Channel, hello: Hello, nonce: bytes) -> tuple[RunId, Hello] | None:
        refuse = await self._judge(hello, nonce)
        if refuse is None and hello.revoke is not None and hello.run in self.runs:
            refuse = await self._revoked(hello)
        # Whoever speaks no version of ours is told so in its own: the words are the same in all.
        channel = Speaking(channel, hello.protocol) if 0 < hello.protocol < 128 else channel
        if refuse is not None:
            await channel.send(encode(refuse))
        elif not hello.probe:
            return hello.run, hello
        elif hello.run in self.runs:
            await channel.send(encode(self._welcome(hello.run)))
            own = PeerAddress(self.identity.node, self.blob_address())
            await channel.send(encode(Peers(edition=0, peers=(own,))))
        elif (error := self.elections.why_not(hello.run)) is not None:
            await channel.send(encode(Refuse(code=error.code, cause=error.cause, next_step=error.next_step)))
        return None

    def _welcome(self, run: RunId) -> Welcome:
        machine = self.runs[run].machine
        heartbeat_s = machine.recipe.membership.heartbeat_s
        return Welcome(run=run, heartbeat_s=heartbeat_s, length=machine.view.length)

    async def _revoked(self, hello: Hello) -> Refuse:
        """A node says that its keys count no more: whoever holds the key may, and nobody comes in with it again."""
        word = revocation_in(hello, self.runs[hello.run].machine.view)
        said = parse(word.payload, Revocation) if word is not None else None
        if said is None:
            return not_a_member()
        await self.post(hello.run, RevokeAsked(said.node, said.reason, word))
        return revoked()

    async def _judge(self, hello: Hello, nonce: bytes) -> Refuse | None:
        run = self.runs.get(hello.run)
        if run is None and hello.run in self.elections.contests:
            return judge_caller(hello, nonce, self.identity.node)
        if run is None and self.elections.learns:
            raise ChannelClosed("it may hear of this run yet")
        if run is None:
            return not_served(hello.run, self.broken.get(hello.run))
        view, recipe = run.machine.view, run.machine.recipe
        return await self.doorkeeper.judge(hello, nonce, view, recipe, run.tokens)
