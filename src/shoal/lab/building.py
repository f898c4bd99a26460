"""The native emulator, compiled on first use and kept.

In flows the C file of the package; out flows a program, or None where there is no compiler. Invariant: the program's
name has the hash of its source and of how it was compiled, so that an old one is never taken for a new one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "emulator.c"
FLAGS = ("-O2", "-std=gnu11")
LIBRARIES = ("-lm",)
COMPILERS = ("cc", "gcc", "clang")


def native_emulator(folder: Path | None = None) -> Path | None:
    """The compiled emulator in `folder` (default: the user's cache); None if it cannot be made here."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    source = SOURCE.read_bytes()
    how = " ".join([*FLAGS, *LIBRARIES, platform.machine(), platform.libc_ver()[1]])
    name = f"emulator-{hashlib.sha256(source + how.encode()).hexdigest()[:16]}"
    for place in [folder] if folder else _places():
        if not _is_ours(place):
            continue
        if (place / name).is_file():
            return place / name
        if compiler and _compile(compiler, place, name):
            return place / name
    return None


def _places() -> list[Path]:
    """Where compiled programs may be kept: the user's cache, else a folder of this user's own in /tmp."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(home) / "shoal", Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"]


def _is_ours(folder: Path) -> bool:
    """Someone else's folder might hold someone else's program."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _compile(compiler: str, folder: Path, name: str) -> bool:
    """Whether the program is there now; written beside and then renamed, since others may compile it too."""
    try:
        handle, written = tempfile.mkstemp(dir=folder, prefix=".building-")
        os.close(handle)
        command = [compiler, *FLAGS, "-o", written, str(SOURCE), *LIBRARIES]
        done = subprocess.run(command, capture_output=True, timeout=120)
        if done.returncode != 0:
            os.unlink(written)
            return False
        os.chmod(written, 0o700)
        os.replace(written, folder / name)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return True
