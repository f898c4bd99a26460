import random

import pytest

from shoal.base.disk import SubDisk, folder_of, write_atomic
from shoal.worlds.simulated.disk import SimDisk


class Died(Exception):
    pass


def test_folder_of() -> None:
    assert [folder_of(p) for p in ("a", "a/b", "a/b/c", "")] == ["", "a", "a/b", ""]


def test_a_sub_disk_is_a_folder() -> None:
    disk = SimDisk()
    sub = SubDisk(disk, "runs/1")
    sub.write("a", b"123")
    sub.append("a", b"4")
    sub.write_at("a", 1, b"X")
    sub.sync("a")
    sub.rename("a", "b/c")
    assert disk.read("runs/1/b/c") == sub.read("b/c") == b"1X34" and sub.read("b/c", 1, 3) == b"X3"
    sub.truncate("b/c", 2)
    assert sub.size("b/c") == 2 and sub.size("a") is None
    assert sub.list("b") == ["c"] and sub.list("") == []
    sub.sync_folder("b")
    disk.crash(random.Random(0))
    assert disk.list("runs/1/b") == ["c"]
    sub.remove("b/c")
    sub.remove("b/c")
    assert disk.list("runs/1/b") == []


@pytest.mark.parametrize("point", ["write.before-sync", "write.after-rename"])
@pytest.mark.parametrize("path", ["f", "folder/f"])
def test_an_atomic_write_leaves_the_old_or_the_whole_new(point: str, path: str) -> None:
    seen = set()
    for seed in range(60):
        disk = SimDisk()
        write_atomic(disk, path, b"old", lambda _: None)

        def reached(name: str) -> None:
            if name == point:
                raise Died

        with pytest.raises(Died):
            write_atomic(disk, path, b"the new content", reached)
        disk.crash(random.Random(seed))
        seen.add(disk.read(path))
    assert seen <= {b"old", b"the new content"} and b"old" in seen


def test_a_finished_atomic_write_survives() -> None:
    points: list[str] = []
    for seed in range(20):
        disk = SimDisk()
        write_atomic(disk, "f", b"old", lambda _: None)
        write_atomic(disk, "f", b"new", points.append)
        disk.crash(random.Random(seed))
        assert disk.read("f") == b"new"
    assert points[:3] == ["write.before-sync", "write.after-rename", "write.durable"]
