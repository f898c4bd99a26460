"""One transfer: ranges of a resource, brought from several peers at once, at each peer's own pace.

In flow ranges and peers; out flow their bytes, each judged by the caller. Invariant: every request ends in a time
that befits its size and its peer, what came before a failure is kept, and no lane outlives its transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed
from shoal.base.host import Host, Peer
from shoal.base.ids import NodeId
from shoal.replica.asking import PATIENTLY, Asking
from shoal.replica.blobs import CHUNK_BYTES

LANES_PER_PEER = 4
MAX_LANES = 8
FAST_LANES = ((256 << 20, 1), (64 << 20, 2))
"""Lanes to a peer of which one brings so many bytes a second: while one waits for the disk another receives, and more
would only contend for this machine; where one is as quick as the disk, it takes the least of the processors."""
RUN_BYTES = 64 << 20
"""The most that is asked for at a time, of a fast peer and where ranges are taken as they come."""
PIECE_BYTES = 128 << 10
"""The least that is asked for at a time, and what a peer whose speed is unknown is asked for first."""
TINY_BYTES = 16 << 10
"""Up to here a blob is asked of one peer first, without lanes."""
LITTLE_BYTES = 1 << 10
"""What shows that somebody has it."""
ENOUGH_BYTES_S = 1 << 20
"""Below this the last resort helps."""
REMEMBER_S = 45.0
"""How long a peer that failed is asked after the others."""
MAX_PATIENCE = 16
MAX_STRIKES = 4
MAX_ASKED = 32
"""How many are asked at once for a little, where nobody gives anything."""
MAX_LINES = 4096
_TIMED_OUT_SHARE = 0.4  # A failure that took this much of the time it had was no plain "I do not have it".


@dataclass(slots=True)
class TransferReport:
    """What one fetch learned about its peers."""

    from_peers: dict[NodeId, int] = field(default_factory=dict)
    """Bytes of good chunks by sender."""
    wrong: dict[NodeId, str] = field(default_factory=dict)
    """Peers that sent something that was not the blob."""


class _TooSlow(ChannelClosed):
    """A request that was not answered in its time; a smaller one, with more time, may be."""


@dataclass(slots=True)
class _Line:
    """What was learned about the way to one peer."""

    lanes: int = LANES_PER_PEER
    patience: int = 1
    rate_bytes_s: float = 0.0
    """Of one lane, when it last gave a good deal; 0 if unknown."""
    strikes: int = 0
    """Time-outs since it last answered; several at once are one."""
    slowed_at: float = -math.inf
    failed_at: float = -math.inf

    @property
    def useful_lanes(self) -> int:
        enough = (lanes for rate_bytes_s, lanes in FAST_LANES if self.rate_bytes_s >= rate_bytes_s)
        return min(self.lanes, next(enough, self.lanes))

    def answered(self, size_bytes: int, took_s: float, timeout_s: float) -> None:
        self.strikes, self.failed_at = 0, -math.inf
        if took_s < timeout_s / 8:
            self.patience = max(1, self.patience // 2)
            self.lanes = min(LANES_PER_PEER, self.lanes + 1)
        if size_bytes >= PIECE_BYTES // 2:  # Less says more about the way's length than about its width.
            self.rate_bytes_s = size_bytes / max(took_s, 1e-6)

    def timed_out(self, began: float, now: float) -> None:
        self.failed_at = now
        if began >= self.slowed_at:  # Else it was asked before the line was last slowed down.
            self.slowed_at = now
            self.strikes += 1
            self.lanes = max(1, self.lanes // 2)
            self.patience = min(MAX_PATIENCE, self.patience * 2)
            self.rate_bytes_s = 0.0

    def give_up(self) -> None:
        """It never answered: that is not slowness, and more patience the next time would not help."""
        self.strikes, self.patience = 0, 1


@dataclass(slots=True)
class _Asked:
    """One request: what time it has, and what came of it."""

    timeout_s: float
    came_bytes: int = 0


class Lines:
    """The ways to all peers. All gets go through here, no more than `MAX_LANES` at a time that are not tiny.

    `timeout_s` is what a chunk of 1 MiB may take on a line of unknown speed. A tiny range gets a fifth of that, a
    line that was timed a little more than it should need, and one that proved slow up to six times as much.
    """

    def __init__(self, host: Host, timeout_s: float) -> None:
        self.late_s = timeout_s / 10
        """How long a lack of progress goes on before something is done about it."""
        self._host = host
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(MAX_LANES)
        self._lines: dict[NodeId, _Line] = {}

    def now(self) -> float:
        return self._host.clock.now()

    def of(self, node: NodeId) -> _Line:
        line = self._lines.get(node)
        if line is None:
            if len(self._lines) >= MAX_LINES:
                del self._lines[next(iter(self._lines))]
            line = self._lines[node] = _Line()
        return line

    def failed(self, node: NodeId) -> None:
        self.of(node).failed_at = self.now()

    def is_unwell(self, node: NodeId) -> bool:
        line = self._lines.get(node)
        # Most lines never failed: that is known without a look at the clock.
        return line is not None and line.failed_at != -math.inf and self.now() - line.failed_at < REMEMBER_S

    async def get(self, peer: Peer, path: str, start: int, stop: int) -> bytes:
        """A range, in the time that befits its size and this peer. Raises `_TooSlow` or `ChannelClosed`."""
        async with self._timed(peer, stop - start) as asked:
            data = await self._host.get(peer, path, start, stop, timeout_s=asked.timeout_s)
            asked.came_bytes = len(data)
            return data

    async def get_pieces(
        self, peer: Peer, path: str, cuts: Sequence[int], take: Callable[[int, Buffer], bool]
    ) -> int:
        """Ranges that lie side by side, as in `Host`, in the time that befits them all."""
        async with self._timed(peer, cuts[-1] - cuts[0]) as asked:
            asked.came_bytes = await self._host.get_pieces(peer, path, cuts, take, timeout_s=asked.timeout_s)
            return asked.came_bytes

    @contextlib.asynccontextmanager
    async def _timed(self, peer: Peer, size_bytes: int) -> AsyncIterator[_Asked]:
        """One request, from which something is learned about the line."""
        line = self.of(peer.node)
        # What is tiny holds up nothing, and must not wait until silent peers have had their time.
        async with self._gate if size_bytes > TINY_BYTES else contextlib.nullcontext():
            asked, began = _Asked(self._patience_s(line, size_bytes)), self.now()
            try:
                yield asked
            except ChannelClosed as error:
                if self.now() - began < _TIMED_OUT_SHARE * asked.timeout_s:
                    raise
                line.timed_out(began, self.now())
                raise _TooSlow(str(error)) from error
            line.answered(asked.came_bytes, self.now() - began, asked.timeout_s)

    async def get_at_once(self, peer: Peer, path: str, size_bytes: int) -> bytes | None:
        """A resource so small that there is nothing to share out, asked of one peer; None if it does not come soon."""
        with contextlib.suppress(TimeoutError, ChannelClosed):
            async with asyncio.timeout(self.late_s):
                return await self.get(peer, path, 0, size_bytes)
        return None

    def piece_bytes(self, node: NodeId) -> int:
        """How much to ask this peer for: what it gives in a short while, so that little is lost when it fails."""
        return min(CHUNK_BYTES, max(PIECE_BYTES, int(self.of(node).rate_bytes_s * self.late_s)))

    def run_bytes(self, node: NodeId) -> int:
        """How much to ask this peer for where every range counts once it is here: so little that it is never late."""
        return min(RUN_BYTES, int(self.of(node).rate_bytes_s * self.late_s / 4))

    async def pause(self) -> None:
        await self._host.clock.sleep(self.late_s / 20)

    def _patience_s(self, line: _Line, size_bytes: int) -> float:
        transfer_s = 0.8 * self._timeout_s * size_bytes / CHUNK_BYTES
        if line.rate_bytes_s:
            transfer_s = min(transfer_s, 4 * size_bytes / line.rate_bytes_s)
        return min((0.2 * self._timeout_s + transfer_s) * line.patience, 6 * self._timeout_s)


class Transfer:
    """Ranges of one resource, brought here by lanes: each asks one peer for one range after another."""

    def __init__(
        self,
        lines: Lines,
        path: str,
        spans: dict[int, tuple[int, int]],
        accept: Callable[[int, bytes], Awaitable[bool]],
        take: Callable[[int, Buffer], bool] | None = None,
        asking: Asking = PATIENTLY,
    ) -> None:
        """`take` does what `accept` does, in the thread that a range comes in by and before the next has come: then a
        fast peer is asked for several at once."""
        self.report = TransferReport()
        self._lines = lines
        self._path = path
        self._spans = spans
        self._accept = accept
        self._take = take
        self._todo = list(spans)
        self._left = set(spans)
        self._asked: dict[int, dict[NodeId, float]] = {}
        """By whom a range is being brought, and when they last gave something."""
        self._parts: dict[tuple[int, NodeId], bytearray] = {}
        """Beginnings of ranges, by giver: when the whole turns out wrong it is known whose it was."""
        self._lanes: dict[asyncio.Task[None], NodeId] = {}
        self._lanes_to: dict[NodeId, int] = {}
        self._useless: set[NodeId] = set()
        self._givers: set[NodeId] = set()
        """Who gave anything."""
        self._asking = asking
        self._began = lines.now()
        self._hush = asking.at_once
        """Nobody has given anything, and somebody was silent: everyone is asked at once, for a little."""
        self._probed: set[NodeId] = set()
        """Who was."""
        self._last: NodeId | None = None
        self._moved_bytes = 0
        self._news = asyncio.Event()

    async def run(self, peers: Sequence[Peer]) -> bool:
        """Bring everything, or as much as these peers give. The last of them is the last resort (the coordinator):
        it joins when the others have failed or are slow. Raises the disk's or the volunteer's `ShoalError`."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._keep_lanes(group, peers[:-1], peers[-1:])
                for lane in self._lanes:
                    lane.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # This disk is full, say: one is enough to know.
        return not self._left

    async def _keep_lanes(
        self, group: asyncio.TaskGroup, others: Sequence[Peer], last: Sequence[Peer]
    ) -> None:
        """Start lanes while they are of use; returns once all is here or nobody is left to ask."""
        began, moved_bytes, late = self._lines.now(), 0, False
        while self._left:
            self._fill(group, others)
            if late or self._hush or not self._lanes:
                self._last = last[0].node if last else None
                self._fill(group, last)
            if not self._lanes:
                return
            await self._hear(began + self._lines.late_s - self._lines.now())
            if self._lines.now() - began >= self._lines.late_s:
                late = late or self._moved_bytes - moved_bytes < ENOUGH_BYTES_S * self._lines.late_s
                self._hush = not self._moved_bytes
                began, moved_bytes = self._lines.now(), self._moved_bytes
                self._tell()

    def _fill(self, group: asyncio.TaskGroup, peers: Sequence[Peer]) -> None:
        """Start lanes, evenly, to peers that are well before those that are not."""
        wanted = min(MAX_LANES, len(self._left))
        while not self._enough(wanted, peers) and (peer := self._freest(peers)) is not None:
            lane = group.create_task(self._lane(peer), name=f"fetch from {peer.node[:8]}")
            self._lanes[lane] = peer.node
            self._lanes_to[peer.node] = self._lanes_to.get(peer.node, 0) + 1
            lane.add_done_callback(self._ended)

    def _enough(self, wanted: int, peers: Sequence[Peer]) -> bool:
        """True if as many lanes as are of use go to these peers. Costs what there are lanes, not peers."""
        if self._hush:
            return len(self._lanes) >= MAX_ASKED
        if len(self._lanes) < wanted:
            return False
        asked = {peer.node for peer in peers}
        of = [node for node in self._lanes.values() if node in asked and not self._is_out(node)]
        return len(of) >= 2 * MAX_LANES or sum(not self._lines.is_unwell(node) for node in of) >= wanted

    def _freest(self, peers: Sequence[Peer]) -> Peer | None:
        """The first of those with the fewest lanes, peers that are well before others; None if nobody has room."""
        best: tuple[bool, int] | None = None
        found = None
        for peer in peers:
            lanes = self._lanes_to.get(peer.node, 0)
            most = 1 if self._hush else self._lines.of(peer.node).useful_lanes
            if lanes >= most or self._is_out(peer.node):
                continue
            rank = (self._lines.is_unwell(peer.node), lanes)
            if best is None or rank < best:
                best, found = rank, peer
                if rank == (False, 0):
                    break
        return found

    def _is_out(self, node: NodeId) -> bool:
        """Whether it is of no use here, or was silent and is not waited for, whatever it was asked for."""
        if node in self._useless:
            return True
        line = self._lines.of(node)
        if line.failed_at < self._began or self._asking.waits_for(node):
            return False
        return line.strikes > 1 or node not in self._givers

    def _ended(self, lane: asyncio.Task[None]) -> None:
        node = self._lanes.pop(lane, None)
        if node is not None:
            self._lanes_to[node] -= 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _hear(self, timeout_s: float) -> None:
        try:
            # At least a little: this host's clock may go slower than the loop's, and never quite get there.
            async with asyncio.timeout(max(timeout_s, self._lines.late_s / 20)):
                await self._news.wait()
        except TimeoutError:
            pass

    # --- one lane ----------------------------------------------------------------------------------------

    async def _lane(self, peer: Peer) -> None:
        """Bring ranges from one peer until none is left, or the peer is of no use here."""
        while (index := await self._next(peer)) is not None:
            run = self._run_from(index, peer.node)
            for each in run:
                self._asked.setdefault(each, {})[peer.node] = self._lines.now()
            slow = False
            try:
                if self._take is not None and self._comes_whole(index, peer.node):
                    await self._bring_run(peer, run, self._take)
                elif (data := await self._bring(peer, index, self._asked[index])) is not None:
                    await self._deliver(peer, index, data)
            except _TooSlow:
                slow = True
            except ChannelClosed:
                self._useless.add(peer.node)
            for each in run:
                self._let_go(peer, each)
            self._tell()
            if slow:
                await self._after_timeout(peer)

    async def _next(self, peer: Peer) -> int | None:
        """A range for this peer to bring, waited for; None once its lane is not needed."""
        line = self._lines.of(peer.node)
        while self._left and self._lanes_to[peer.node] <= line.useful_lanes and not self._is_out(peer.node):
            index = self._pick(peer.node)
            if index is not None:
                return index
            await self._news.wait()
        return None

    def _pick(self, node: NodeId) -> int | None:
        for (index, giver), part in self._parts.items():
            if part and giver == node and index in self._todo:
                self._todo.remove(index)
                return index
        if self._todo:
            return self._todo.pop()
        return next((index for index in self._asked if self._may_double(index, node)), None)

    def _comes_whole(self, index: int, node: NodeId) -> bool:
        """Whether this peer is so fast that a range is asked for at once, and has not begun to give it."""
        start, stop = self._spans[index]
        small = not self._hush and stop - start <= self._lines.piece_bytes(node)
        return small and not self._parts.get((index, node))

    def _run_from(self, index: int, node: NodeId) -> list[int]:
        """The range and those before it that the same request may bring: fewer as the end comes near, so that all lanes
        have something to do until then."""
        run = [index]
        if self._take is None or not self._comes_whole(index, node):
            return run
        most = max(1, len(self._todo) // max(1, len(self._lanes)))
        stop = self._spans[index][1]
        while len(run) < most and self._todo and self._todo[-1] == run[0] - 1:
            before = self._todo[-1]
            if stop - self._spans[before][0] > self._lines.run_bytes(node) or self._parts.get((before, node)):
                break
            run.insert(0, self._todo.pop())
        return run

    def _may_double(self, index: int, node: NodeId) -> bool:
        """Whether to bring a range that another is bringing, and seems stuck with."""
        givers = self._asked[index]
        if node in givers or index not in self._left:
            return False
        if self._hush:
            return True
        if node != self._last:
            return not self._lines.is_unwell(node) and all(map(self._lines.is_unwell, givers))
        quicker = self._lines.piece_bytes(node) > max(map(self._lines.piece_bytes, givers))
        nothing_yet = not any(self._parts.get((index, giver)) for giver in givers)
        silent = self._lines.now() - max(givers.values()) >= self._lines.late_s
        return silent and (quicker or nothing_yet)

    async def _bring(self, peer: Peer, index: int, asked: dict[NodeId, float]) -> bytes | None:
        """A whole range, piece by piece; fewer bytes if the resource ends. What came before a failure is kept. None if
        this is left to another."""
        start, stop = self._spans[index]
        part = self._parts.setdefault((index, peer.node), bytearray())
        while index in self._left and start + len(part) < stop:
            at = start + len(part)
            size = min(LITTLE_BYTES if self._hush else self._lines.piece_bytes(peer.node), stop - at)
            if self._hush:
                self._probed.add(peer.node)
            data = await self._lines.get(peer, self._path, at, at + size)
            self._moved(peer.node, len(data))
            asked[peer.node] = self._lines.now()
            if at == start and len(data) == stop - start:
                return data  # Whole at once, as on any fast line: spare the copy.
            part += data
            if len(data) < size:
                break
            if len(part) <= LITTLE_BYTES and any(
                self._may_bring(one, index) for one in asked.keys() - {peer.node}
            ):
                return None
        return bytes(part)

    def _may_bring(self, node: NodeId, index: int) -> bool:
        """Whether it began to give a range, or was asked for more than a little and has some time left."""
        asked = node not in self._probed and not self._lines.is_unwell(node)
        return asked or bool(self._parts.get((index, node)))

    def _moved(self, node: NodeId, size_bytes: int) -> None:
        self._moved_bytes += size_bytes
        self._givers.add(node)
        self._hush = False

    async def _bring_run(self, peer: Peer, run: list[int], take: Callable[[int, Buffer], bool]) -> None:
        """Ranges that lie side by side, each taken when it is here, whatever becomes of the others."""
        by_start = {self._spans[index][0]: index for index in run}
        came: list[tuple[int, int, bool]] = []

        def judge(start: int, data: Buffer) -> bool:
            good = take(by_start[start], data)
            came.append((by_start[start], len(data), good))
            return good

        try:
            await self._lines.get_pieces(peer, self._path, [*by_start, self._spans[run[-1]][1]], judge)
        finally:
            for index, size_bytes, good in came:
                self._moved(peer.node, size_bytes)
                self._judged(peer, index, size_bytes, good)

    async def _deliver(self, peer: Peer, index: int, data: bytes) -> None:
        if index not in self._left:
            return  # Another was faster.
        self._judged(peer, index, len(data), await self._accept(index, data))

    def _judged(self, peer: Peer, index: int, size_bytes: int, good: bool) -> None:
        if not good:
            self.report.wrong[peer.node] = f"sent wrong bytes for range {index}"
            self._useless.add(peer.node)
            self._lines.failed(peer.node)
            self._parts.pop((index, peer.node), None)
        elif index in self._left:
            self._left.discard(index)
            given = self.report.from_peers
            given[peer.node] = given.get(peer.node, 0) + size_bytes

    def _let_go(self, peer: Peer, index: int) -> None:
        asked = self._asked[index]
        asked.pop(peer.node, None)
        if not asked:
            self._asked.pop(index, None)
            if index in self._left:
                self._todo.append(index)
        if index not in self._left:
            self._parts.pop((index, peer.node), None)

    async def _after_timeout(self, peer: Peer) -> None:
        line = self._lines.of(peer.node)
        if line.strikes >= MAX_STRIKES:
            line.give_up()
            self._useless.add(peer.node)
        elif not self._is_out(peer.node):
            await self._lines.pause()  # Others may take up what this peer could not bring.
