import random

import pytest

from shoal.worlds.simulated.disk import SimDisk


def _after_crashes(make, path: str = "f") -> set[bytes | None]:  # type: ignore[no-untyped-def]
    """Everything that may be found after a power cut, over many seeds."""
    found: set[bytes | None] = set()
    for seed in range(200):
        disk = SimDisk()
        make(disk)
        disk.crash(random.Random(seed))
        found.add(disk.read(path) if disk.size(path) is not None else None)
    return found


def test_files_and_folders() -> None:
    disk = SimDisk()
    disk.write("a/b", b"12345")
    disk.write("a/c/d", b"x")
    assert disk.read("a/b", 1, 3) == b"23" and disk.read("a/b", 4) == b"5" and disk.read("a/b", 9) == b""
    assert (
        disk.list("a") == ["b"] and disk.list("a/c") == ["d"] and disk.list("") == [] and disk.list("x") == []
    )
    disk.write_at("a/b", 7, b"z")
    assert disk.read("a/b") == b"12345\0\0z"
    with pytest.raises(FileNotFoundError):
        disk.read("nope")
    for missing in (disk.sync, lambda p: disk.rename(p, "x"), lambda p: disk.truncate(p, 0)):
        with pytest.raises(FileNotFoundError):
            missing("nope")


def test_nothing_unsynced_is_promised() -> None:
    found = _after_crashes(lambda disk: disk.write("f", b"0123456789"))
    assert None in found and b"0123456789" in found and len(found) > 4, "gone, whole, or torn"
    assert all(one is None or b"0123456789".startswith(one) for one in found)


def test_content_without_its_name_is_lost_or_whole() -> None:
    def make(disk: SimDisk) -> None:
        disk.write("f", b"data")
        disk.sync("f")

    assert _after_crashes(make) == {None, b"data"}


def test_a_name_without_its_content_may_be_torn() -> None:
    def make(disk: SimDisk) -> None:
        disk.write("f", b"data")
        disk.sync_folder("")

    found = _after_crashes(make)
    assert None not in found and found >= {b"", b"data"}


def test_both_synced_is_durable() -> None:
    def make(disk: SimDisk) -> None:
        disk.write("f", b"data")
        disk.sync("f")
        disk.sync_folder("")

    assert _after_crashes(make) == {b"data"}


def test_an_overwrite_may_leave_the_old_the_new_or_a_mixture() -> None:
    def make(disk: SimDisk) -> None:
        disk.write("f", b"old!")
        disk.sync("f")
        disk.sync_folder("")
        disk.write("f", b"other")

    found = _after_crashes(make)
    assert {b"old!", b"other"} <= found


def test_an_unsynced_append_never_hurts_what_was_synced() -> None:
    def make(disk: SimDisk) -> None:
        disk.append("f", b"synced")
        disk.sync("f")
        disk.sync_folder("")
        disk.append("f", b" and more")

    found = _after_crashes(make)
    assert all(one is not None and one.startswith(b"synced") for one in found) and len(found) > 3


def test_an_unsynced_removal_may_come_back() -> None:
    def make(disk: SimDisk) -> None:
        disk.write("f", b"data")
        disk.sync("f")
        disk.sync_folder("")
        disk.remove("f")

    assert _after_crashes(make) == {None, b"data"}


def test_a_rename_over_a_file_leaves_one_of_the_two() -> None:
    def make(disk: SimDisk) -> None:
        for name, content in (("f", b"old"), ("f.tmp", b"new")):
            disk.write(name, content)
            disk.sync(name)
        disk.sync_folder("")
        disk.rename("f.tmp", "f")

    assert _after_crashes(make) == {b"old", b"new"}


def test_the_seed_decides() -> None:
    def crashed(seed: int) -> bytes | None:
        disk = SimDisk()
        disk.write("f", b"0123456789")
        disk.crash(random.Random(seed))
        return disk.read("f") if disk.size("f") is not None else None

    assert [crashed(seed) for seed in range(30)] == [crashed(seed) for seed in range(30)]
