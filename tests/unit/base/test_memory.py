"""Memory as a container leaves it, by control groups of either version, laid out as the system does."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shoal.base.memory import free_memory_bytes

MIB = 1 << 20


def _group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in files.items():
        (folder / name.replace("_", ".", 1)).write_text(words)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def _second(folder: Path, limit: str, used: int, cached: int) -> None:
    _group(
        folder, memory_max=limit, memory_current=f"{used}\n", memory_stat=f"anon 5\ninactive_file {cached}\n"
    )


def _first(folder: Path, limit: int, used: int, cached: int) -> None:
    stat = f"inactive_file 1\ntotal_active_file {cached // 2}\ntotal_inactive_file {cached // 2}\n"
    _group(folder, memory_limit_in_bytes=f"{limit}\n", memory_usage_in_bytes=f"{used}\n", memory_stat=stat)


def test_the_narrowest_group_around_a_process_counts(tmp_path: Path, mine: Path) -> None:
    mine.write_text("0::/shop/desk\n")
    _second(tmp_path / "shop", f"{9 * MIB}\n", 5 * MIB, 2 * MIB)
    _second(tmp_path / "shop" / "desk", "max\n", 3 * MIB, MIB)
    _second(tmp_path / "other", f"{MIB}\n", MIB, 0)
    assert free_memory_bytes(tmp_path, mine) == 6 * MIB
    _second(tmp_path / "shop" / "desk", f"{4 * MIB}\n", 3 * MIB, MIB)
    assert free_memory_bytes(tmp_path, mine) == 2 * MIB
    _second(tmp_path / "shop" / "desk", f"{MIB}\n", 3 * MIB, MIB)
    assert free_memory_bytes(tmp_path, mine) == 0


def test_a_container_whose_path_is_the_machines_is_the_mounts_root(tmp_path: Path, mine: Path) -> None:
    mine.write_text("5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/\n")
    _first(tmp_path / "memory", 8 * MIB, 6 * MIB, MIB)
    _first(tmp_path / "cpu", MIB, MIB, 0)
    assert free_memory_bytes(tmp_path, mine) == 3 * MIB
    _first(tmp_path / "memory", 2**63 - 4096, 6 * MIB, MIB)
    assert free_memory_bytes(tmp_path, mine) > 8 * MIB, "no limit, as the first version writes it"


def test_without_groups_the_machine_counts(tmp_path: Path, mine: Path) -> None:
    total = psutil.virtual_memory().total
    assert 0 < free_memory_bytes(tmp_path, mine) <= total
    assert 0 < free_memory_bytes() <= total
