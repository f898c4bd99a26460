"""How much memory this process may still take.

In flows what the system says; out flow bytes. Invariant: a container's limit counts as the machine's own does, since
the system ends whoever exceeds either.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of both versions of control groups: the limit, what is used, and what of that the system takes back when it must.
_FILES = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def free_memory_bytes(groups: Path = GROUPS, mine: Path = MINE) -> int:
    """What the machine has free, or what the control groups of this process leave of it."""
    left = [room for group in _groups(groups, mine) if (room := _room_in(group)) is not None]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def _groups(groups: Path, mine: Path) -> Iterator[Path]:
    """Every folder that says something of this process: its groups', and those around them."""
    try:
        lines = mine.read_text("utf-8").splitlines()
    except OSError:
        return  # Not a Linux.
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        for root in (groups / "memory",) if kinds else (groups, groups / "unified"):
            folder = root / path.lstrip("/")
            # In a container the path may be the machine's, which is not there: the mount's root is the container's.
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root))


def _room_in(group: Path) -> int | None:
    for limit, used, reclaimable in _FILES:
        try:
            most, now = int((group / limit).read_text()), int((group / used).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # No such file, or a limit of "max".
            continue
        return most - now + sum(int(stat.get(name, 0)) for name in reclaimable)
    return None
