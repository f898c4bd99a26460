"""Founding runs: what exists afterwards, and that nothing does when it fails."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.apps.home import Home
from shoal.apps.recipes import shipped
from shoal.apps.unfounded import clear_unfounded
from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.admission import token_hash
from shoal.coordinator.founding import FOUNDING, Founded, add_token, first_state, found_run, read_tokens
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

from .serving import serving

NOW_MS = 1_000_000


class Ground:
    """Somewhere to found runs."""

    def __init__(self, folder: Path) -> None:
        self.disk = FileDisk(folder)
        self.store = FileLogStore(self.disk, lambda _: None)

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


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _cut_off(folder: Path) -> tuple[Path, Home]:
    """A home as a kill leaves it in the midst of a founding, and the folder of the run that was to be."""
    whole, left = Home(folder / "whole"), Home(folder / "left")
    ground = Ground(whole.coordinator)
    SqlLogStore(whole.store_url).close()

    def first(recipe: Recipe, manifest: Manifest) -> State:
        shutil.copytree(whole.root, left.root)
        return first_state(recipe, manifest)

    run = ground.found(first=first, seed=9).run
    assert not list(whole.root.rglob(FOUNDING)), "the mark goes before the run is in a log"
    room = left.coordinator / "runs" / run
    assert len(_files(room / "blobs")) > 1 and (room / FOUNDING).exists()
    return room, left


def test_what_a_kill_left_of_a_founding_goes_at_the_next_start(tmp_path: Path) -> None:
    room, home = _cut_off(tmp_path)
    with serving(home.root, recipe="digits") as found, found.client() as api:
        assert not room.exists()
        (run,) = api.runs()
    stored = _files(home.coordinator / "runs" / run.run / "blobs")
    with serving(home.root):
        assert _files(home.coordinator / "runs" / run.run / "blobs") == stored != []


def test_a_founding_of_this_moment_is_left_alone(tmp_path: Path) -> None:
    room, home = _cut_off(tmp_path)
    before = _files(room)
    with at_work(home.coordinator):
        clear_unfounded(home, home.store_url)
        assert _files(room) == before
    clear_unfounded(home, home.store_url)
    assert not room.exists()


def test_nothing_goes_of_a_run_that_is_in_a_log_or_has_no_mark(tmp_path: Path) -> None:
    room, home = _cut_off(tmp_path)
    store = SqlLogStore(home.store_url)
    store.append(RunId(room.name), 0, b"genesis")
    before = _files(room)
    clear_unfounded(home, home.store_url)
    assert _files(room) == before
    (room / FOUNDING).unlink()
    elsewhere = f"sqlite:///{tmp_path}/another.sqlite"
    clear_unfounded(home, elsewhere)
    assert len(_files(room)) == len(before) - 1, "a run of another store"
    store.close()
