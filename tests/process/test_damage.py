"""Damaged and full disks: found, named, and mended where another copy exists."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from shoal.apps.home import Home
from shoal.runlog.chain import Link
from shoal.runlog.entries import Seal

from .fleet import TINY, Fleet
from .processes import Ended, run_shoal
from .referee import end_run, stored_log
from .test_bad_input import told


@pytest.fixture(scope="module")
def rested(fleet: Fleet) -> Fleet:
    """A run that has trained a little, all its processes dead."""
    fleet.serve(TINY)
    fleet.join("ada", "--max-up", "8kB/s")
    fleet.seals_after(0, count=12)
    fleet.nodes["ada"].kill()
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    return fleet


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def _middle_seal(links: list[Link]) -> Link:
    seals = [link for link in links if isinstance(link.entry.body, Seal)]
    return seals[len(seals) // 2]


def _damaged_copy(fleet: Fleet, tmp_path: Path) -> tuple[Path, Link]:
    """A copy of the coordinator's home with one bit flipped in the middle of an entry."""
    home = tmp_path / "home"
    shutil.copytree(fleet.home, home)
    link = _middle_seal(stored_log(fleet))
    store = home / "coordinator" / "store.sqlite"
    content = store.read_bytes()
    # An entry lies on several pages of the file: take a stretch of it that lies on one.
    parts = (link.encoded[start : start + 24] for start in range(len(link.encoded) // 2, len(link.encoded)))
    part = next(part for part in parts if len(part) == 24 and content.count(part) == 1)
    flip(store, content.index(part) + 12)
    return home, link


def test_a_flipped_bit_in_the_log_is_named(rested: Fleet, tmp_path: Path) -> None:
    home, link = _damaged_copy(rested, tmp_path)
    words = told(run_shoal(["log", "verify", rested.run, "--home", str(home)]), "SH-LOG-01")
    assert f"entry {link.entry.position} " in words


def test_a_coordinator_refuses_a_damaged_log(rested: Fleet, tmp_path: Path) -> None:
    home, link = _damaged_copy(rested, tmp_path)
    ports = ["--port", "0", "--control-port", "0", "--blob-port", "0"]
    words = told(run_shoal(["serve", "--home", str(home), *ports]), "SH-LOG-01")
    assert f"entry {link.entry.position} " in words


def test_a_coordinator_refuses_a_store_that_is_none(rested: Fleet, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(rested.home, home)
    (home / "coordinator" / "store.sqlite").write_bytes(b"this was a database" * 100)
    ports = ["--port", "0", "--control-port", "0", "--blob-port", "0"]
    told(run_shoal(["serve", "--home", str(home), *ports]), "SH-LOG-04")


def test_a_damaged_blob_of_the_coordinator_is_named(rested: Fleet, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(rested.home, home)
    blob = _largest_blob(home / "coordinator" / "runs" / rested.run)
    flip(blob, blob.stat().st_size // 2)
    words = told(run_shoal(["log", "verify", rested.run, "--home", str(home)]), "SH-BLOB-02")
    assert blob.name in words


def _largest_blob(folder: Path) -> Path:
    """The training data, which everybody needs at every start."""
    return max((folder / "blobs").glob("*"), key=lambda path: path.stat().st_size)


def test_a_node_mends_its_damaged_blob_and_log(rested: Fleet) -> None:
    folder = rested.node_folder("ada")
    blob, log = _largest_blob(folder), folder / "logs" / f"{rested.run}.log"
    flip(blob, blob.stat().st_size // 2)
    flip(log, log.stat().st_size // 2)
    verified = run_shoal(["log", "verify", "--node", "--home", str(rested.home_of("ada"))])
    told(verified, "SH-LOG-01")

    rested.serve()
    rested.join("ada", "--max-up", "8kB/s")
    rested.contributes("ada", after=rested.length())

    said = rested.nodes["ada"].err.read_text()
    assert "file_damaged file=log" in said and f"blob_rotten file=blobs/{blob.name}" in said
    assert blob.with_name(blob.name + ".rotten").exists()
    assert log.with_name(log.name + ".damaged").exists()
    verified = run_shoal(["log", "verify", "--node", "--home", str(rested.home_of("ada"))])
    assert verified.status == 0, verified


def test_a_node_whose_disk_is_full_says_so_and_comes_back(rested: Fleet) -> None:
    node = rested.nodes["ada"]
    log = rested.node_folder("ada") / "logs" / f"{rested.run}.log"
    room = log.stat().st_size  # Its log cannot grow any more; everything else it writes is smaller.
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (room, room))

    assert node.ended() == 1
    told(Ended(1, "", node.err.read_text()), "SH-DISK-01")

    rested.join("ada")
    rested.contributes("ada", after=rested.length())


def test_a_coordinator_whose_disk_is_full_says_so_and_goes_on_later(rested: Fleet) -> None:
    assert rested.coordinator is not None
    child, store = rested.coordinator, Path(Home(rested.home).store_url.removeprefix("sqlite:///"))
    room = store.stat().st_size
    resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (room, room))

    assert child.ended() == 1
    told(Ended(1, "", child.err.read_text()), "SH-DISK-01")

    before = [link.hash for link in stored_log(rested)]
    rested.serve()
    rested.contributes("ada", after=len(before))
    assert [link.hash for link in rested.links()[: len(before)]] == before


def test_nothing_was_lost(rested: Fleet) -> None:
    end_run(rested)
