"""Checks of this machine, each a small function with a verdict, what was found and a remedy.

In flow the system's own answers; out flow `Check`s. Invariant: a check never raises and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from shoal import __version__
from shoal.apps.home import Home
from shoal.base.errors import ShoalError
from shoal.base.units import show_bytes
from shoal.worlds.real.keys import load_or_create_identity

Verdict = Literal["ok", "warn", "fail"]

EARLIEST_S, LATEST_S = 1_767_225_600.0, 4_102_444_800.0  # 2026 and 2100
MIN_DISK_BYTES, GOOD_DISK_BYTES = 200_000_000, 5_000_000_000
GOOD_MEMORY_BYTES = 1_000_000_000
PROBE_BYTES = 4 << 20
SLOW_SYNC_S = 1.0
OLDEST_TORCH = (2, 6)
LEAST_VERSIONS = {"cryptography": (50, 0), "msgspec": (0, 18), "blake3": (1, 0), "safetensors": (0, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    code: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        return asdict(self)


def check_machine(home: Home) -> list[Check]:
    checks: list[Callable[[], Check]] = [
        check_clock,
        lambda: check_space(home.root),
        lambda: check_writing(home.root),
        check_memory,
        check_processor,
        check_gpu,
        check_python,
        check_torch,
        check_packages,
        check_uvloop,
        check_nat,
        lambda: check_key(home),
    ]
    return [check() for check in checks]


def check_clock(now_s: Callable[[], float] = time.time) -> Check:
    now = now_s()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if EARLIEST_S <= now <= LATEST_S:
        return Check(name="clock", verdict="ok", found=shown)
    remedy = "set the clock: tickets that expire and monthly limits go by it"
    return Check(name="clock", verdict="warn", found=f"{shown} cannot be right", remedy=remedy)


def check_space(root: Path) -> Check:
    free = shutil.disk_usage(_standing_part(root)).free
    found = f"{show_bytes(free)} free for {root}"
    if free < MIN_DISK_BYTES:
        return Check(
            name="disk space",
            verdict="fail",
            found=found,
            remedy="free some space, or choose another --home",
            code="SH-DISK-01",
        )
    if free < GOOD_DISK_BYTES:
        return Check(
            name="disk space", verdict="warn", found=found, remedy="large runs keep several GB of blobs"
        )
    return Check(name="disk space", verdict="ok", found=found)


def check_writing(root: Path) -> Check:
    """Write and sync a file where the home folder is or would be."""
    folder = _standing_part(root)
    try:
        began = time.monotonic()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".shoal-doctor-") as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        taken_s = time.monotonic() - began
    except OSError as error:
        return Check(
            name="disk writing",
            verdict="fail",
            found=f"{folder}: {error.strerror or error}",
            remedy="make room and let this user write there, or choose another --home",
            code="SH-DISK-02",
        )
    found = f"{PROBE_BYTES >> 20} MiB written and synced in {taken_s * 1000:.0f} ms"
    if taken_s > SLOW_SYNC_S:
        return Check(name="disk writing", verdict="warn", found=found, remedy="use a faster disk for --home")
    return Check(name="disk writing", verdict="ok", found=found)


def _standing_part(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def check_memory() -> Check:
    memory = psutil.virtual_memory()
    found = f"{show_bytes(memory.available)} available of {show_bytes(memory.total)}"
    if memory.available < GOOD_MEMORY_BYTES:
        return Check(name="memory", verdict="warn", found=found, remedy="close other programs")
    return Check(name="memory", verdict="ok", found=found)


def check_processor() -> Check:
    import torch

    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    found = f"{platform.machine()}, {cores} cores, torch uses {torch.get_num_threads()} threads"
    return Check(name="processor", verdict="ok", found=found)


def check_gpu() -> Check:
    import torch

    from shoal.training.device import pick_device

    try:
        device = pick_device("auto")
    except ShoalError as error:
        return Check(
            name="gpu", verdict="warn", found=error.cause, remedy="join with --device cpu", code=error.code
        )
    if device.type == "cuda":
        name, memory = (
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_properties(device).total_memory,
        )
        return Check(name="gpu", verdict="ok", found=f"{name}, {show_bytes(memory)}, tried and works")
    found = "Apple GPU, tried and works" if device.type == "mps" else "none: the processor will train"
    return Check(name="gpu", verdict="ok", found=found)


def check_python() -> Check:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    )
    return Check(name="python", verdict="ok", found=found)


def check_torch() -> Check:
    version = importlib.metadata.version("torch")
    found = f"torch {version}, shoal {__version__}"
    numbers = tuple(int(part) for part in version.partition("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        return Check(name="torch", verdict="warn", found=found, remedy="pip install -U torch")
    return Check(name="torch", verdict="ok", found=found)


def check_packages() -> Check:
    """What signatures, messages and hashes stand on, by the least versions that do."""
    found = {name: importlib.metadata.version(name) for name in LEAST_VERSIONS}
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    old = [name for name, least in LEAST_VERSIONS.items() if _numbers(found[name]) < least]
    if old:
        remedy = f"pip install -U {' '.join(old)}"
        return Check(name="packages", verdict="fail", found=shown, remedy=remedy, code="SH-JOIN-06")
    return Check(name="packages", verdict="ok", found=shown)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def check_nat(address_of: Callable[[], str | None] | None = None) -> Check:
    """Whether others could connect to this machine. They need not: a node behind NAT takes part outbound only."""
    address = (address_of or own_address)()
    if address is None:
        remedy = "check the cable, the Wi-Fi or the default route"
        return Check(
            name="nat", verdict="warn", found="this machine has no way to other networks", remedy=remedy
        )
    if ipaddress.ip_address(address).is_global:
        found = f"{address} is a public address: others can reach this machine, if no firewall keeps them out"
        return Check(name="nat", verdict="ok", found=found)
    remedy = (
        "nothing has to be done: it takes part outbound only. To give to others too, forward a port to it and join"
        " with --port PORT --advertise NAME; machines of the same network need only --port"
    )
    return Check(
        name="nat", verdict="warn", found=f"{address} is behind NAT, or in a private network", remedy=remedy
    )


def own_address() -> str | None:
    """The address that this machine would go out by; nothing is sent."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    return None


def check_uvloop() -> Check:
    if importlib.util.find_spec("uvloop") is not None:
        return Check(name="event loop", verdict="ok", found="uvloop")
    if os.name == "nt":
        return Check(name="event loop", verdict="ok", found="the stock one: uvloop is not for Windows")
    remedy = "pip install uvloop: it doubles the speed of encrypted links"
    return Check(name="event loop", verdict="warn", found="the stock one", remedy=remedy)


def check_key(home: Home) -> Check:
    path = home.node_key
    if not path.exists():
        return Check(name="node key", verdict="ok", found=f"none yet; `shoal join` makes {path}")
    with contextlib.suppress(OSError):
        try:
            identity = load_or_create_identity(path)
        except ShoalError as error:
            return Check(
                name="node key", verdict="fail", found=error.cause, remedy=error.next_step, code=error.code
            )
        return Check(name="node key", verdict="ok", found=f"node {identity.node}")
    return Check(name="node key", verdict="fail", found=f"{path} cannot be read", code="SH-KEY-01")
