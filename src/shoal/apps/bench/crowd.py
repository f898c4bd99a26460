"""A crowd of nodes that only join and beat: real channels, real signatures, no training.

In flow tickets and how often to beat; out flow counts of what was sent, answered and lost. Invariant: one process,
started with `python -m shoal.apps.bench.crowd`, so that its work is not the coordinator's; it says `joined` once all
are in, and its counts as JSON when its input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.base.disk import Disk
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel
from shoal.node.session import Invitation, open_session
from shoal.wire.identity import Identity
from shoal.wire.messages import Beat, Heartbeat, Peers, decode, encode
from shoal.wire.ticket import read_ticket
from shoal.worlds.real.channels import ChannelLimits
from shoal.worlds.real.host import RealHost

AT_ONCE, TRIES = 24, 10
SHORT_BYTES = 400
"""Longer frames are no beats, and are not read."""
FOLLOWED = 1 << 40
"""A length of the log that nobody reaches: these nodes want no entries."""


@dataclass(slots=True)
class Counts:
    sent: int = 0
    answered: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Node:
    """One of the crowd, on its channel."""

    number: int
    channel: Channel
    edition: int = 0
    """Which peer list it has."""


async def crowd(tickets: list[str], nodes: int, every_s: float, disk: Disk) -> Counts:
    """Join `nodes` nodes, spread evenly over the tickets, and beat until stdin closes."""
    counts, gate, begin = Counts(), asyncio.Semaphore(AT_ONCE), asyncio.Event()
    limits = ChannelLimits(open_s=60.0, send_s=60.0, ping_s=120.0, pong_s=120.0)
    listeners: list[asyncio.Future[None]] = []
    async with RealHost(Identity.generate(), disk, channel_limits=limits) as host:

        async def join(number: int) -> _Node:
            node = _Node(number, await _join(host, tickets[number % len(tickets)], number, gate))
            # From now on it reads, as a node would: one that does not is cut off.
            listeners.append(asyncio.ensure_future(_hear(node, counts)))
            return node

        joined = await asyncio.gather(*(join(number) for number in range(nodes)))
        tasks = [asyncio.ensure_future(_beat(node, nodes, every_s, counts, begin)) for node in joined]
        print("joined", flush=True)
        begin.set()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.0)  # What is on its way is answered.
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
        return counts


async def _join(host: RealHost, ticket: str, number: int, gate: asyncio.Semaphore) -> Channel:
    invitation = Invitation.from_ticket(read_ticket(ticket), f"node-{number:04}")
    identity = Identity.generate()
    async with gate:
        for _ in range(TRIES - 1):
            with contextlib.suppress(ChannelClosed):
                return await _open(host, identity, invitation)
        return await _open(host, identity, invitation)


async def _open(host: RealHost, identity: Identity, invitation: Invitation) -> Channel:
    channel, _ = await open_session(host, identity, invitation, blob_address="", length=FOLLOWED)
    return channel


async def _beat(node: _Node, nodes: int, every_s: float, counts: Counts, begin: asyncio.Event) -> None:
    """Each at its own place in the interval, as machines that know nothing of one another."""
    await begin.wait()
    await asyncio.sleep(every_s * node.number / nodes)
    turn, due = 0, time.monotonic()
    while True:
        turn, due = turn + 1, due + every_s
        beat = Heartbeat(
            at=0,
            length=FOLLOWED,
            peers=node.edition,
            doing=f"t={time.time() * 1000:.1f}",
            step=turn,
            loss=2.0 + (node.number % 7) / 10,
            tokens_per_s=1000.0 + node.number,
            device="cpu",
        )
        try:
            await node.channel.send(encode(beat))
        except ChannelClosed:
            return
        counts.sent += 1
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _hear(node: _Node, counts: Counts) -> None:
    try:
        while True:
            frame = await node.channel.recv()
            if len(frame) > SHORT_BYTES:
                continue
            message = decode(frame)
            counts.answered += isinstance(message, Beat)
            if isinstance(message, Peers):
                node.edition = message.edition
    except (ChannelClosed, ShoalError):
        counts.lost += 1


def main() -> None:
    from shoal.worlds.real.descriptors import allow_files
    from shoal.worlds.real.disk import FileDisk
    from shoal.worlds.real.loop import run

    wish = json.loads(sys.stdin.readline())
    allow_files(wish["nodes"])
    if wish["core"] is not None:
        os.sched_setaffinity(0, {wish["core"]})
    folder = FileDisk(Path(wish["folder"]))
    counts = run(crowd(wish["tickets"], wish["nodes"], wish["every_s"], folder))
    print(json.dumps({"sent": counts.sent, "answered": counts.answered, "lost": counts.lost}), flush=True)


if __name__ == "__main__":
    main()
