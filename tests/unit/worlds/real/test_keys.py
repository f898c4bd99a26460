from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.runlog.keys import MAX_LINE, news_in, shown_line
from shoal.worlds.real.keys import line_path, load_or_create_identity, rotate_identity


def test_made_once_private_and_then_the_same(tmp_path: Path) -> None:
    path = tmp_path / "home" / "key"
    first = load_or_create_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_identity(path).node == first.node
    assert sorted(os.listdir(path.parent)) == ["key", "key.sum"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_or_create_identity(path)
    path.chmod(mode)
    with pytest.raises(ShoalError, match="chmod 600") as caught:
        load_or_create_identity(path)
    assert caught.value.code == "SH-KEY-01"


@pytest.mark.parametrize("content", [b"", b"00", b"g" * 64, b"a" * 65, b"\xff" * 64, b"a" * 64 + b"\n\n"])
def test_a_malformed_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ShoalError, match="SH-KEY-01"):
        load_or_create_identity(path)
    assert path.read_bytes() == content


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="SH-KEY-01"):
        load_or_create_identity(tmp_path)


def test_a_replaced_key_keeps_the_nodes_id_and_its_line_and_the_secret_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = load_or_create_identity(path)
    second = rotate_identity(path, revokes=False)
    third = rotate_identity(path, revokes=True)
    again = load_or_create_identity(path)
    assert again.node == first.node == second.node and again.public == third.public
    assert len({first.public, second.public, third.public}) == 3
    assert again.first.public == first.public and again.line == third.line and len(again.line) == 2
    assert stat.S_IMODE(line_path(path).stat().st_mode) == 0o600
    assert len(news_in(shown_line(again, hybrid=True), first.hybrid.public)) == 2


def test_a_line_that_rotted_is_refused_and_one_that_is_full_is_not_made_longer(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for _ in range(MAX_LINE):
        rotate_identity(path, revokes=False)
    with pytest.raises(ShoalError, match=f"replaced {MAX_LINE} times"):
        rotate_identity(path, revokes=False)
    line_path(path).chmod(0o644)
    with pytest.raises(ShoalError, match="chmod 600"):
        load_or_create_identity(path)
    line_path(path).chmod(0o600)
    line_path(path).write_bytes(b"{}")
    with pytest.raises(ShoalError, match="SH-KEY-01"):
        load_or_create_identity(path)
    (tmp_path / "key.line.sum").unlink()
    with pytest.raises(ShoalError, match="does not hold a line of keys"):
        load_or_create_identity(path)
