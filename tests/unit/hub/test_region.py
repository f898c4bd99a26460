"""A region's founding: what is left of it when a kill cuts it off, and what the next start makes of that."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
import torch
from apps.killed import FOUNDED, MADE, READY, UNFOUNDED, UNKNOWN, KilledStore, files

from shoal.apps.unfounded import clear_unfounded
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest, Shard
from shoal.hub.region import Parent, Region
from shoal.replica.blobs import chunk_list
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.runlog.entries import Genesis
from shoal.strategy.recipe import parse_recipe
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.locks import at_work, held
from shoal.worlds.real.sqlstore import SqlLogStore
from shoal.worlds.simulated.toy import toy_layout

RECIPE = """
name: halos
model: {kind: own}
data: {source: own, items: 4096}
inner: {kind: own, batch_size: 2}
strategy: {preset: halos}
budget: {rounds: 10}
"""
DATA = (bytes(512), bytes(range(256)) * 2)
OWNER = Identity(bytes(32))


class Founding:
    """A region that is founded in a home of its own, and cut off at a moment of it."""

    def __init__(self, folder: Path, moment: str) -> None:
        self.store = KilledStore(folder, moment)
        self.others = False
        """Whether somebody else could have had the home for himself meanwhile."""
        self._shards = {chunk_list(data).blob: data for data in DATA}

    def found(self) -> RunId:
        with closing(self.store):
            return asyncio.run(self._found())

    async def _found(self) -> RunId:
        folder = self.store.home.coordinator
        host = RealHost(OWNER, FileDisk(folder), bind="127.0.0.1", control_port=0, peer_port=0)
        async with host, asyncio.TaskGroup() as tasks:
            service = CoordinatorService(host, OWNER, self.store)
            region = Region(service, "north", at_work=lambda: at_work(folder))
            serving = tasks.create_task(service.serve(), name="coordinator")
            try:
                await region.open(self._parent())
            finally:
                serving.cancel()
        return region.run

    def _read(self, blob: BlobId) -> bytes:
        with held(self.store.home.coordinator) as alone:
            self.others |= alone
        if blob == list(self._shards)[-1]:
            self.store.reached(MADE)
        return self._shards[blob]

    def _parent(self) -> Parent:
        recipe = parse_recipe(RECIPE, environment={})
        layout = toy_layout(40, recipe.strategy.schedule.fragments)
        state = initial_state(layout, torch.zeros(40), recipe.strategy.fold_rules().slots)
        train, validation = (Shard(blob=blob, items=512) for blob in self._shards)
        genesis = Genesis(
            coordinator=OWNER.public,
            recipe=recipe.model_dump_json(),
            manifest=Manifest(
                kind="tokens", dtype="uint8", train=(train,), validation=(validation,), context=1
            ),
            layout=layout,
            state=state_hash(state),
            snapshot=chunk_list(encode_state(state)).blob,
            snapshot_bytes=len(encode_state(state)),
            arithmetic=ARITHMETIC,
        )
        return Parent(run=RunId("a" * 32), genesis=genesis, recipe=recipe, state=state, read=self._read)


@pytest.mark.parametrize("moment", UNFOUNDED)
def test_what_a_kill_left_of_a_founding_goes_at_the_next_start(tmp_path: Path, moment: str) -> None:
    founding = Founding(tmp_path, moment)
    room, home = founding.store.room(founding.found()), founding.store.left
    assert len(files(room / "blobs")) == {UNKNOWN: 0, MADE: 1, READY: 3}[moment]
    clear_unfounded(home, home.store_url)
    assert not room.exists()
    assert not founding.others, "who founds is at work in the home"


@pytest.mark.parametrize("moment", FOUNDED)
def test_a_region_with_a_genesis_only_loses_its_mark(tmp_path: Path, moment: str) -> None:
    founding = Founding(tmp_path, moment)
    room, home = founding.store.room(founding.found()), founding.store.left
    blobs = files(room / "blobs")
    clear_unfounded(home, home.store_url)
    assert files(room) == blobs and len(blobs) == 3
    with closing(SqlLogStore(home.store_url)) as store:
        assert store.runs() == [room.name] and not store.kept(RunId(room.name), "")


def test_a_founding_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Missing(Founding):
        def _read(self, blob: BlobId) -> bytes:
            if blob == chunk_list(DATA[1]).blob:
                raise ShoalError("SH-BLOB-01", "it is gone", "look for it")
            return super()._read(blob)

    founding = Missing(tmp_path, "never")
    with pytest.raises(ExceptionGroup) as caught:
        founding.found()
    assert caught.group_contains(ShoalError, match="SH-BLOB-01")
    assert not files(founding.store.home.coordinator / "runs")
