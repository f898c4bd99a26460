"""A byte flipped in each kind of stored file: found, named, and made whole again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.apps.ckpt_verifying import verify_home
from shoal.apps.logs_checking import verify_run
from shoal.apps.logs_reading import find_log

from .fleet import Fleet, tiny
from .processes import run_shoal
from .referee import end_run, stored_log
from .test_damage import flip


@pytest.fixture(scope="module")
def rested(fleet: Fleet) -> Fleet:
    """A run that has trained a little, all its processes dead."""
    fleet.serve(tiny(storage={"snapshot_every": 2}))
    fleet.join("ada", "--max-up", "20kB/s")
    fleet.join("bob", "--max-up", "20kB/s")
    fleet.contributes("ada")
    fleet.contributes("bob")
    fleet.seals_after(0, count=8)
    for child in (*fleet.nodes.values(), fleet.coordinator):
        assert child is not None
        child.kill()
    return fleet


@pytest.fixture
def homes(rested: Fleet, tmp_path: Path) -> Iterator[Path]:
    """Copies of all homes, to damage."""
    for name in ("coordinator", "ada", "bob"):
        shutil.copytree(rested.folder / f"{name}-home", tmp_path / name)
    yield tmp_path


def verify(home: Path, *, node: bool, sources: list[Path] | None = None) -> dict[str, Any]:
    return verify_home(home, None, node=node, repair=sources is not None, sources=sources or [])


def blob_of(folder: Path, which: int) -> Path:
    return sorted((folder / "blobs").iterdir(), key=lambda path: path.stat().st_size)[which]


COORDINATORS = ["key", "admin-token", "join-token", "data", "update", "store"]
NODES = ["key", "log", "blob", "outbox", "private state", "receipt"]


def file_of(fleet: Fleet, homes: Path, owner: str, kind: str) -> Path:
    coordinator, node = homes / "coordinator" / "coordinator", homes / "ada" / "node"
    theirs, mine = coordinator / "runs" / fleet.run, node / "runs" / fleet.run
    if owner == "coordinator":
        return {
            "key": lambda: coordinator / "key",
            "admin-token": lambda: coordinator / "admin-token",
            "join-token": lambda: theirs / "join-token",
            "data": lambda: blob_of(theirs, -1),
            "update": lambda: blob_of(theirs, 0),
            "store": lambda: coordinator / "store.sqlite",
        }[kind]()
    return {
        "key": lambda: node / "key",
        "log": lambda: mine / "logs" / f"{fleet.run}.log",
        "blob": lambda: blob_of(mine, -1),
        "outbox": lambda: mine / "outbox",
        "private state": lambda: next(mine.glob("local-*")),
        "receipt": lambda: max(mine.glob("receipts/*.receipt")),
    }[kind]()


@pytest.mark.parametrize(
    ("owner", "kind"), [*(("coordinator", k) for k in COORDINATORS), *(("node", k) for k in NODES)]
)
def test_a_flipped_byte_is_found_named_and_made_whole(
    rested: Fleet, homes: Path, owner: str, kind: str
) -> None:
    home = homes / ("coordinator" if owner == "coordinator" else "ada")
    node = owner == "node"
    path = file_of(rested, homes, owner, kind)
    sound, size = path.read_bytes(), path.stat().st_size
    flip(path, _place_in(rested, path, kind, size))

    found = verify(home, node=node)
    assert not found["ok"] and found["code"] == "SH-CKPT-07"
    assert [item["file"] for item in found["damaged"]] == [str(path)]

    mended = verify(home, node=node, sources=[homes / "bob", homes / "coordinator"])
    assert mended["ok"], mended
    assert verify(home, node=node)["damaged"] == []
    if kind not in ("outbox", "private state", "receipt", "store", "log"):
        assert path.read_bytes() == sound
    if kind in ("store", "log"):
        assert verify_run(find_log(home, None, rested.run, node=node)).entries == len(stored_log(rested))


def _place_in(fleet: Fleet, path: Path, kind: str, size: int) -> int:
    """The middle; of a store, the middle of an entry, since not every byte of a database means something."""
    if kind != "store":
        return size // 2
    link = stored_log(fleet)[5]
    part = link.encoded[100:124]
    content = path.read_bytes()
    return content.index(part) + 12


def test_a_coordinator_that_is_on_mends_itself_from_its_members(rested: Fleet) -> None:
    rested.serve()
    rested.join("ada", "--max-up", "1MB/s")
    rested.contributes("ada", after=rested.length())
    data = blob_of(rested.home / "coordinator" / "runs" / rested.run, -1)
    sound = data.read_bytes()
    flip(data, len(sound) // 2)
    rested.until(lambda: data.exists() and data.read_bytes() == sound, 40, "the data to be fetched again")
    end_run(rested)


def test_the_command_names_what_is_damaged_and_ends_with_1(rested: Fleet, homes: Path) -> None:
    blob = blob_of(homes / "coordinator" / "coordinator" / "runs" / rested.run, -1)
    flip(blob, 7)
    done = run_shoal(["ckpt", "verify", "--home", str(homes / "coordinator")])
    assert done.status == 1 and str(blob) in done.out, done
