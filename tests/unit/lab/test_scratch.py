"""Scratch folders: removed by their owner, else by the next one, and by nobody while they are in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.lab.scratch import LOCK, remove_ownerless, scratch

OWNER = """
import sys
from pathlib import Path
from shoal.lab.scratch import scratch

with scratch("test-", Path(sys.argv[1])) as folder:
    (folder / "within").mkdir()
    (folder / "within" / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def owner(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder there until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def left_by_killed(place: Path) -> Path:
    process, folder = owner(place)
    process.kill()
    process.communicate(timeout=30)
    assert (folder / "within" / "file").exists()
    return folder


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with scratch("test-", tmp_path) as folder:
        assert folder.parent == tmp_path and folder.name.startswith("shoal-lab-test-")
        assert folder.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_goes_and_what_living_ones_have_stays(tmp_path: Path) -> None:
    living, theirs = owner(tmp_path)
    left = left_by_killed(tmp_path)
    with scratch(place=tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {theirs, mine}, f"{left.name} goes, whatever it was for"
        with scratch(place=tmp_path) as another:
            assert set(tmp_path.iterdir()) == {theirs, mine, another}
    living.communicate("", timeout=30)
    assert not list(tmp_path.iterdir())


def test_folders_without_a_lock_other_files_and_links_stay(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    (place / "shoal-lab-link").symlink_to(elsewhere)
    (place / "shoal-lab-no-lock").mkdir()
    (place / "shoal-lab-file").touch()
    (place / "mine").mkdir()
    (place / "mine" / LOCK).touch()
    before = set(place.iterdir())
    remove_ownerless(place)
    assert set(place.iterdir()) == before and (elsewhere / LOCK).exists()


def test_another_users_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, me = left_by_killed(tmp_path), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    remove_ownerless(tmp_path)
    assert left.exists()
    monkeypatch.undo()
    remove_ownerless(tmp_path)
    assert not left.exists()
