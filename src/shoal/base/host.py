"""The world as coordinator and node see it: time, disk, randomness, heavy work, and the network.

Two implementations: `worlds.real` and `worlds.simulated`. In flow messages, byte ranges and jobs, never
sockets or threads. Invariant: everything here may be late, repeated or lost except the disk's synced bytes,
and the logic above copes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from shoal.base.disk import Buffer, Disk
from shoal.base.ids import NodeId

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> float:
        """Seconds that only go forward; comparable within one process only."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by this machine's clock, which may be wrong."""

    async def sleep(self, seconds: float) -> None: ...


class Channel(Protocol):
    """A pipe of frames to one peer. Raises `ChannelClosed` once it is broken."""

    def admit(self) -> None:
        """Whoever is on the other side has shown who it is: take frames of full size from now on."""

    async def send(self, frame: bytes) -> None: ...
    async def recv(self) -> bytes: ...
    async def close(self) -> None: ...


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's resources are served: its identity, and its address if it can be reached."""

    node: NodeId
    address: str
    """`host:port` in the real world, the host's name in the simulated one; "" if outbound only."""


class Resources(Protocol):
    """What this process offers to its peers by path, as a small HTTP: ranges out, bodies in.

    Both are called off the main thread in the real world, and must be quick and safe to call concurrently.
    """

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        """Bytes [start, stop) of the resource, or None where there is none."""

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        """Take `body` from an authenticated sender; the reply's body. `Refused` if it is not wanted."""


class Refused(Exception):
    """A put that is not wanted; the text goes back to the sender."""


class Host(Protocol):
    """One process's hold on its world. `disk` is this node's own folder."""

    @property
    def clock(self) -> Clock: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def random(self) -> random.Random: ...

    def reached(self, point: str) -> None:
        """A named point. Tests kill or stop the process here; in production it does nothing."""

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        """Run heavy or blocking work away from the event loop. `seconds` is what simulation charges for it
        at device speed 1."""

    async def connect(self, address: str, node: NodeId) -> Channel:
        """Open a channel to `node`'s control address, and only to that node. Raises `ChannelClosed` if it does
        not answer, `ShoalError` SH-JOIN-07 if somebody else does."""

    async def listen(self, serve: Callable[[Channel], Awaitable[None]]) -> str:
        """Accept control channels, each handled by `serve` in a task of its own. Returns the address."""

    async def offer(self, resources: Resources) -> str:
        """Serve `resources` to peers. Returns the address, or "" if this host takes no inbound connections."""

    async def get(self, peer: Peer, path: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        """Bytes [start, stop) of a peer's resource, fewer at its end. Raises `ChannelClosed` on any failure."""

    async def get_pieces(
        self,
        peer: Peer,
        path: str,
        cuts: Sequence[int],
        take: Callable[[int, Buffer], bool],
        *,
        timeout_s: float,
    ) -> int:
        """Bytes [cuts[0], cuts[-1]) of a peer's resource, asked for at once and given to `take` from cut to cut, with
        where each piece begins; how many came. `take` runs away from the event loop, may be given a piece twice, must
        not keep its memory, and says whether to go on. A piece that the resource's end cuts short, maybe to nothing,
        is the last. Raises `ChannelClosed` on any failure, and what `take` raises."""

    async def put(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> bytes:
        """Give `body` to a peer; its reply. Raises `ChannelClosed`, or `Refused` with the peer's words."""
