from __future__ import annotations

import errno
import os
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.room import take_room
from shoal.worlds.simulated.disk import SimDisk


@pytest.fixture
def disk(tmp_path: Path) -> FileDisk:
    return FileDisk(tmp_path / "root")


def test_it_is_a_disk(disk: FileDisk) -> None:
    as_protocol: Disk = disk
    assert as_protocol.list("") == []


def test_write_read_ranges_and_size(disk: FileDisk) -> None:
    disk.write("a/b/c", b"0123456789")
    assert disk.read("a/b/c") == b"0123456789"
    assert disk.read("a/b/c", 3, 5) == b"34"
    assert disk.read("a/b/c", 8, 100) == b"89"
    assert disk.read("a/b/c", 50) == b""
    assert disk.size("a/b/c") == 10
    assert disk.size("a/b") is None and disk.size("a/none") is None and disk.size("a/b/c/d") is None


def test_write_replaces_and_append_and_truncate(disk: FileDisk) -> None:
    disk.write("f", b"long content")
    disk.write("f", bytearray(b"short"))
    disk.append("f", memoryview(b"+more"))
    assert disk.read("f") == b"short+more"
    disk.truncate("f", 2)
    assert disk.read("f") == b"sh"
    disk.append("new/one", b"x")
    assert disk.read("new/one") == b"x"


def test_write_at_creates_and_grows_with_zeros(disk: FileDisk) -> None:
    disk.write_at("f", 3, b"abc")
    disk.write_at("f", 0, b"z")
    assert disk.read("f") == b"z\0\0abc"
    large = bytes(range(256)) * 4096
    disk.write_at("g", 5, large)
    assert disk.read("g", 5) == large


def test_room_is_taken_and_the_content_stays(disk: FileDisk) -> None:
    disk.write("blobs/old.part", b"abc")
    for name in ("blobs/old.part", "blobs/new.part"):
        disk.reserve(name, 8 << 20)
    assert disk.read("blobs/old.part") == b"abc" and disk.size("blobs/new.part") == 0
    if take_room_works(disk.root):
        assert all(os.stat(disk.root / f"blobs/{n}.part").st_blocks * 512 >= 8 << 20 for n in ("old", "new"))
    disk.write_at("blobs/new.part", 2, b"xy")
    assert disk.read("blobs/new.part") == b"\0\0xy"


def test_room_that_is_not_there_is_said_and_none_is_kept(disk: FileDisk) -> None:
    disk.write("f", b"abc")
    before = os.stat(disk.root / "f").st_blocks
    said = pytest.raises(ShoalError, match="SH-DISK-01") if take_room_works(disk.root) else nullcontext()
    with said:
        disk.reserve("f", 1 << 60)
    assert disk.read("f") == b"abc" and os.stat(disk.root / "f").st_blocks == before


def take_room_works(folder: Path) -> bool:
    with open(folder / "trial", "wb") as file, suppress(OSError):
        take_room(file.fileno(), 1 << 20)
        return os.fstat(file.fileno()).st_blocks > 0
    return False


def test_rename_list_remove(disk: FileDisk) -> None:
    disk.write("d/two", b"2")
    disk.write("d/one", b"1")
    disk.write("d/below/three", b"3")
    assert disk.list("d") == ["one", "two"]
    assert disk.list("nowhere") == [] and disk.list("d/one") == []
    disk.rename("d/one", "elsewhere/uno")
    assert disk.read("elsewhere/uno") == b"1"
    disk.remove("d/two")
    disk.remove("d/two")
    assert disk.list("d") == []


@pytest.mark.parametrize("action", ["read", "sync", "truncate", "rename", "sync_folder"])
def test_a_missing_file_is_a_missing_file(disk: FileDisk, action: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {"truncate": (0,), "rename": ("x",)}
    with pytest.raises(FileNotFoundError):
        getattr(disk, action)("none", *arguments.get(action, ()))


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "", "a//b", ".", "a/./b", "a\\b", "a\0b"]
)
def test_paths_that_are_not_plain_are_refused(disk: FileDisk, path: str) -> None:
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        disk.write(path, b"x")
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        disk.read(path)


def test_a_link_out_of_the_root_is_refused(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    os.symlink(tmp_path, disk.root / "out")
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        disk.read("out/secret")


def test_write_atomic_works_on_it_and_leaves_no_rest(disk: FileDisk) -> None:
    points: list[str] = []
    write_atomic(disk, "state/head", b"v1", points.append)
    write_atomic(disk, "state/head", b"v2", points.append)
    assert disk.read("state/head") == b"v2"
    assert disk.list("state") == ["head"]
    assert points == ["write.before-sync", "write.after-rename", "write.durable"] * 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_says_so(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own full device stands in for a full disk."""
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: real_open("/dev/full", os.O_WRONLY, mode))
    with pytest.raises(ShoalError) as caught:
        disk.write("f", b"x" * 77)
    assert caught.value.code == "SH-DISK-01"
    assert "77 bytes" in caught.value.cause and str(disk.root) in caught.value.cause
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC


def test_other_failures_are_sh_disk_02(disk: FileDisk) -> None:
    disk.write("f", b"x")
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        disk.write("f/below", b"x")
    (disk.root / "folder").mkdir()
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        disk.read("folder")


def test_who_reserved_a_file_writes_to_it_whatever_its_name_leads_to(tmp_path: Path) -> None:
    for disk in (FileDisk(tmp_path), SimDisk()):
        write_at = disk.reserve("b/part", 8)
        write_at(4, b"cdef")
        write_at(0, b"0123")
        disk.rename("b/part", "b/whole")
        disk.write("b/part", b"of another")
        write_at(1, memoryview(b"--"))
        assert disk.read("b/whole") == b"0--3cdef" and disk.read("b/part") == b"of another"
