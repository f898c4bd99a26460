"""A node's part in digests: it folds the shards it was drawn for, and steps by what others folded.

In flow a seal cut into shards; out flow digests on this disk with what they left out, and the next state. Invariant: a
digest and its residual are durable before anybody hears of them; a residual is used by those whom the log says have
it, and a folder that has lost its own says nothing of that shard.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec
import torch

from shoal.base.disk import Disk, write_atomic
from shoal.base.host import Host
from shoal.base.ids import BlobId, NodeId
from shoal.node.supply import FETCHES_AT_ONCE, Supply, Waiting
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import FoldRules
from shoal.replica.sharded import Inputs, Made, Parts, fold_shards, make_digest
from shoal.replica.state import State
from shoal.runlog.sharding import Shard
from shoal.runlog.view import Step

Item = tuple[int, BlobId, int]
"""(number of a shard, its digest, bytes of that)."""
_PREFIX = "residual"
KEPT = 2
"""Seals of each fragment whose residuals are kept: the last, and the one it was folded from."""


class Residuals:
    """What this node's digests left out, in one file for each fragment of a seal."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk

    def save(self, position: int, kept: Sequence[tuple[Shard, torch.Tensor]]) -> None:
        """Keep these durably, and forget those of seals long before."""
        for fragment in sorted({shard.fragment for shard, _ in kept}):
            values = {s.start: vector.cpu().numpy().tobytes() for s, vector in kept if s.fragment == fragment}
            path = f"{_PREFIX}-{fragment}-{position}"
            write_atomic(self._disk, path, msgspec.msgpack.encode(values), self._host.reached)
            for old in self._positions(fragment)[:-KEPT]:
                self._disk.remove(f"{_PREFIX}-{fragment}-{old}")

    def load(self, shard: Shard) -> torch.Tensor | None:
        """What this shard's last digest left out; None if it is not here. Call it only if there was one."""
        path = f"{_PREFIX}-{shard.fragment}-{shard.since}"
        if self._disk.size(path) is None:
            return None
        with contextlib.suppress(msgspec.DecodeError):
            kept = msgspec.msgpack.decode(self._disk.read(path), type=dict[int, bytes])
            values = bytearray(kept.get(shard.start, b""))
            if len(values) == 4 * shard.numel:
                return torch.frombuffer(values, dtype=torch.float32)
        return None

    def _positions(self, fragment: int) -> list[int]:
        names = [name.split("-") for name in self._disk.list("") if name.startswith(f"{_PREFIX}-{fragment}-")]
        return sorted(int(parts[2]) for parts in names if len(parts) == 3 and parts[2].isdecimal())


class ShardFolder:
    """One node's shards of one run."""

    def __init__(self, host: Host, disk: Disk, blobs: BlobStore, supply: Supply) -> None:
        self._host = host
        self._blobs = blobs
        self._supply = supply
        self._residuals = Residuals(host, disk)

    async def make(
        self, step: Step, node: NodeId, state: State, rules: FoldRules, waiting: Waiting, *, reachable: bool
    ) -> tuple[Item, ...]:
        """The digests of a node's shards, durable and with others where need be; those it can make."""
        mine = [number for number, shard in enumerate(step.shards) if node in shard.folders]
        parts = await self._supply.fetch_parts(step, mine, waiting)
        made: dict[int, Made] = {}
        for number in mine:
            fold = partial(self._fold, step, step.shards[number], parts[number], state, rules)
            found = await self._host.work(fold)
            if found is not None:
                made[number] = found
        items = []
        for number, found in made.items():
            blob = await self._host.work(partial(self._blobs.put, found.payload))
            items.append((number, blob, len(found.payload)))
        kept = [(step.shards[number], found.residual) for number, found in made.items()]
        await self._host.work(partial(self._residuals.save, step.position, kept))
        self._host.reached("node.after-residual")
        lonely = [blob for number, blob, _ in items if not reachable or len(step.shards[number].folders) == 1]
        await self._supply.share(lonely)
        return tuple(items)

    def _fold(self, step: Step, shard: Shard, parts: Parts, state: State, rules: FoldRules) -> Made | None:
        residual = self._residuals.load(shard) if shard.since else None
        if shard.since and residual is None:
            return None
        return make_digest(state, step, shard, parts, rules, residual)

    async def adopt(self, step: Step, state: State, rules: FoldRules, waiting: Waiting) -> State:
        """The state after a seal: by the digests of its shards, and by all updates where there is none."""
        slots, digests = asyncio.Semaphore(FETCHES_AT_ONCE), dict[int, bytes]()

        async def one(number: int, blob: BlobId, size_bytes: int, holders: tuple[NodeId, ...]) -> None:
            async with slots:
                digests[number] = await self._supply.read(blob, size_bytes, holders, waiting)

        async with asyncio.TaskGroup() as tasks:
            for number, item in enumerate(step.digests or ()):
                if item is not None:
                    tasks.create_task(one(number, item.blob, item.size_bytes, item.folders), name="digest")
        parts = await self._supply.fetch_parts(step, step.folded_by_all, waiting)
        return await self._host.work(partial(fold_shards, state, step, Inputs(digests, parts), rules))
