"""Quantities as people write them ("10 Mbit/s", "2 GiB", "90 s") to and from plain numbers."""

from __future__ import annotations

import re

_SIZES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_TIMES = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _split(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z/]*)\s*", text)
    if not match:
        raise ValueError(f"{text!r} is not a number with a unit")
    return float(match[1]), match[2]


def size_bytes(text: str) -> int:
    """ "500 MB", "2GiB", "1.5g" -> bytes."""
    number, unit = _split(text)
    prefix = unit.lower().removesuffix("b")
    if prefix not in _SIZES:
        raise ValueError(f"{unit!r} is not a unit of size; use B, kB, MB, GB, KiB, MiB or GiB")
    return int(number * _SIZES[prefix])


def rate_bytes_s(text: str) -> float:
    """ "10 Mbit/s", "10mbit", "10 Mbps", "2 MB/s" -> bytes per second. A small `b` means bits, a large one bytes."""
    number, unit = _split(text)
    name = unit.removesuffix("/s").removesuffix("ps")
    if name.lower().endswith("bit"):
        prefix, bits = name[:-3], 8
    else:
        prefix, bits = name.removesuffix("b").removesuffix("B"), 8 if name.endswith("b") else 1
    if not name or prefix.lower() not in _SIZES:
        raise ValueError(f"{unit!r} is not a unit of rate; use kbit/s, Mbit/s, Gbit/s, kB/s or MB/s")
    return number * _SIZES[prefix.lower()] / bits


def duration_s(text: str) -> float:
    """ "90", "90s", "5min", "2h" -> seconds."""
    number, unit = _split(text)
    if unit and unit not in _TIMES:
        raise ValueError(f"{unit!r} is not a unit of time; use ms, s, min, h or d")
    return number * _TIMES.get(unit, 1.0)


def show_bytes(count: float) -> str:
    """1234567 -> "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_duration(seconds: float) -> str:
    """75 -> "1:15", 3700 -> "1:01:40"."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
