"""Founding runs: what exists afterwards, and that nothing does when it fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shoal.apps.home import Home
from shoal.apps.recipes import shipped
from shoal.apps.unfounded import clear_unfounded
from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.admission import token_hash
from shoal.coordinator.founding import Founded, add_token, first_state, found_run, read_tokens
from shoal.data.manifest import Manifest
from shoal.data.manifest import blobs as data_blobs
from shoal.replica.blobs import BlobStore
from shoal.replica.state import State, decode_state, state_hash
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView, verify_log
from shoal.strategy.recipe import Recipe, load_recipe, recipe_in_log
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.locks import at_work
from shoal.worlds.real.sqlstore import SqlLogStore

from .killed import APPENDED, FOUNDED, MADE, UNFOUNDED, UNKNOWN, KilledStore, files
from .serving import serving

NOW_MS = 1_000_000


class Ground:
    """Somewhere to found runs."""

    def __init__(self, folder: Path, store: LogStore | None = None) -> None:
        self.disk = FileDisk(folder)
        self.store: LogStore = store or FileLogStore(self.disk, lambda _: None)

    def blobs(self, run: RunId) -> BlobStore:
        return BlobStore(SubDisk(self.disk, f"runs/{run}"), lambda _: None)

    def found(
        self,
        *overrides: str,
        seed: int = 0,
        expires_s: float | None = None,
        first: Callable[[Recipe, Manifest], State] | None = None,
    ) -> Founded:
        recipe = load_recipe(shipped()["digits"], overrides=overrides, environment={})
        return found_run(
            recipe,
            identity=Identity(bytes(32)),
            store=self.store,
            blobs=self.blobs,
            wall_ms=NOW_MS,
            random=random.Random(seed),
            expires_s=expires_s,
            first=first,
        )

    def view(self, run: RunId) -> RunView:
        view, finding = verify_log(list(self.store.read(run)), run)
        assert finding is None
        return view


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_a_founded_run_has_all_its_nodes_need(ground: Ground) -> None:
    founded = ground.found("strategy.preset=diloco", "strategy.schedule.fragments=2")
    genesis = ground.view(founded.run).genesis
    assert genesis is not None
    room = ground.blobs(founded.run)
    assert all(room.has(blob) for blob in data_blobs(genesis.manifest))
    state = decode_state(room.get(genesis.snapshot), genesis.layout)
    assert state_hash(state) == genesis.state
    assert set(state.slots) == {"momentum"}
    assert len(genesis.layout.fragments) == 2
    assert recipe_in_log(genesis.recipe).strategy.schedule.fragments == 2


def test_only_the_tokens_hash_is_kept(ground: Ground) -> None:
    founded = ground.found(expires_s=60)
    (token,) = read_tokens(ground.store, founded.run)
    assert token.sha256 == token_hash(founded.token)
    assert token.expires_ms == NOW_MS + 60_000
    assert list(ground.store.kept(founded.run, "")) == ["token.0"]
    assert founded.token.encode() not in ground.store.kept(founded.run, "token.0")["token.0"]


def test_the_first_state_is_the_recipes_alone(ground: Ground) -> None:
    one, two, other = ground.found(seed=1), ground.found(seed=2), ground.found("seed=7", seed=3)
    assert one.run != two.run and one.token != two.token
    states = [ground.view(founded.run).genesis for founded in (one, two, other)]
    first, second, third = (genesis.state for genesis in states if genesis is not None)
    assert first == second != third


def test_more_tokens_and_old_ones_forgotten(ground: Ground) -> None:
    run = ground.found(expires_s=1).run
    add_token(ground.store, run, wall_ms=NOW_MS, random=random.Random(5))
    assert list(ground.store.kept(run, "token.")) == ["token.0", "token.1"]
    much_later_ms = NOW_MS + 10 * 365 * 86_400_000
    secret, _ = add_token(ground.store, run, wall_ms=much_later_ms, random=random.Random(6))
    assert list(ground.store.kept(run, "token.")) == ["token.1", "token.2"]
    assert token_hash(secret) in {token.sha256 for token in read_tokens(ground.store, run)}


@pytest.mark.parametrize(
    ("override", "code"),
    [("inner.batch_size=100000", "SH-DATA-02"), ("model={kind: gpt}", "SH-MODEL-01")],
)
def test_nothing_is_left_of_a_run_that_cannot_be(
    ground: Ground, tmp_path: Path, override: str, code: str
) -> None:
    with pytest.raises(ShoalError) as caught:
        ground.found(override)
    assert caught.value.code == code
    assert ground.store.runs() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_quota_without_room_for_the_first_rounds_is_refused(ground: Ground, tmp_path: Path) -> None:
    with pytest.raises(
        ShoalError, match=r"SH-RECIPE-02.*storage.quota_bytes: found 1000; allowed: (\d+)"
    ) as refused:
        ground.found("storage.quota_bytes=1000")
    needed = int(refused.value.cause.split("allowed: ")[1].split()[0])
    assert list(ground.store.runs()) == []
    assert ground.found(f"storage.quota_bytes={needed}").run


# --- foundings that are cut off --------------------------------------------------------------------------


def _cut_off(folder: Path, moment: str = MADE) -> tuple[Path, Home]:
    """The folder of a run that was being founded when a kill came, and the home that it is in."""
    store = KilledStore(folder, moment)
    ground = Ground(store.home.coordinator, store)

    def first(recipe: Recipe, manifest: Manifest) -> State:
        store.reached(MADE)
        return first_state(recipe, manifest)

    room = store.room(ground.found(first=first, seed=9).run)
    store.close()
    assert (len(files(room / "blobs")) > 1) == (moment != UNKNOWN)
    return room, store.left


def test_what_a_kill_left_of_a_founding_goes_at_the_next_start(tmp_path: Path) -> None:
    room, home = _cut_off(tmp_path)
    with serving(home.root, recipe="digits") as found, found.client() as api:
        assert not room.exists()
        (run,) = api.runs()
    stored = files(home.coordinator / "runs" / run.run / "blobs")
    with serving(home.root):
        assert files(home.coordinator / "runs" / run.run / "blobs") == stored != []


@pytest.mark.parametrize("moment", UNFOUNDED)
def test_nothing_is_left_of_a_run_without_a_genesis_whenever_the_kill_came(
    tmp_path: Path, moment: str
) -> None:
    room, home = _cut_off(tmp_path, moment)
    clear_unfounded(home, home.store_url)
    assert not room.exists()
    with closing(SqlLogStore(home.store_url)) as store:
        assert store.kept(RunId(room.name), "") == {}


@pytest.mark.parametrize("moment", FOUNDED)
def test_a_run_with_a_genesis_only_loses_its_mark(tmp_path: Path, moment: str) -> None:
    room, home = _cut_off(tmp_path, moment)
    blobs = files(room / "blobs")
    clear_unfounded(home, home.store_url)
    assert files(room) == blobs
    with closing(SqlLogStore(home.store_url)) as store:
        assert list(store.kept(RunId(room.name), "")) == ["token.0"]


def test_a_founding_of_this_moment_is_left_alone(tmp_path: Path) -> None:
    room, home = _cut_off(tmp_path)
    before = files(room)
    with at_work(home.coordinator):
        clear_unfounded(home, home.store_url)
        assert files(room) == before
    clear_unfounded(home, home.store_url)
    assert not room.exists()


@pytest.mark.parametrize("moment", [MADE, APPENDED])
def test_nothing_goes_of_a_run_of_another_store(tmp_path: Path, moment: str) -> None:
    room, home = _cut_off(tmp_path, moment)
    before = files(room)
    clear_unfounded(home, f"sqlite:///{tmp_path}/another.sqlite")
    assert files(room) == before


def test_a_run_that_its_store_refuses_leaves_nothing_and_says_why(ground: Ground, tmp_path: Path) -> None:
    class Full(FileLogStore):
        def append(self, run: RunId, position: int, entry: bytes) -> None:
            raise ShoalError("SH-DISK-01", "full", "make room")

    ground.store = Full(ground.disk, lambda _: None)
    with pytest.raises(ShoalError, match="SH-DISK-01"):
        ground.found()
    assert files(tmp_path) == []


def test_a_mark_that_cannot_be_removed_does_not_undo_the_run(ground: Ground) -> None:
    class Stuck(FileLogStore):
        def drop(self, run: RunId, key: str) -> None:
            raise ShoalError("SH-DISK-02", "stuck", "look")

    ground.store = Stuck(ground.disk, lambda _: None)
    run = ground.found().run
    genesis = ground.view(run).genesis
    assert genesis is not None and ground.blobs(run).has(genesis.snapshot)


def test_an_answer_that_is_lost_after_the_genesis_was_stored_costs_no_blob(ground: Ground) -> None:
    class Lost(FileLogStore):
        def append(self, run: RunId, position: int, entry: bytes) -> None:
            super().append(run, position, entry)
            raise ShoalError("SH-LOG-04", "the connection broke", "again")

    ground.store = Lost(ground.disk, lambda _: None)
    with pytest.raises(ShoalError, match="SH-LOG-04"):
        ground.found()
    (run,) = ground.store.runs()
    genesis = ground.view(run).genesis
    assert genesis is not None and ground.blobs(run).has(genesis.snapshot)
