from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.worlds.real.keys import load_or_create_identity


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
