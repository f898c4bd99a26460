"""A real PostgreSQL for tests, from the binaries that `pgserver` ships, by root and by ordinary users alike.

The server refuses to run as root, so for root it runs as `nobody`, on a copy of the binaries that `nobody` can
reach. (The package's own starter would add a user to the system and open up folders along the way.)
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

START_S = 60


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of an empty database, for as long as the context lasts. It listens on a socket file only."""
    # Not pytest's folder: its parents are closed to others, and its path can be too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="shoal-pg-", dir="/tmp"))
    try:
        programs, user = _programs(folder)
        data = folder / "data"
        _call(
            [programs / "initdb", "-D", data, "-U", "shoal", "-A", "trust", "-E", "UTF8", "--no-sync"], user
        )
        control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-w", "-t", str(START_S)]
        listen = f"-k {folder} -c listen_addresses=''"
        _call([*control, "-o", listen, "-l", folder / "log", "start"], user)
        try:
            yield f"postgresql://shoal@/postgres?host={folder}"
        finally:
            _call([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(folder)


def _programs(folder: Path) -> tuple[Path, str | None]:
    """Where the binaries are, and as whom to run them."""
    found = find_spec("pgserver")  # found, not imported: importing it makes files
    assert found is not None and found.submodule_search_locations
    package = Path(found.submodule_search_locations[0])
    if os.geteuid() != 0:
        return package / "pginstall" / "bin", None
    nobody = pwd.getpwnam("nobody")
    # The binaries look for their libraries beside the package, by a relative path.
    for part in ("pgserver/pginstall", "pgserver.libs"):
        shutil.copytree(package.parent / part, folder / part, symlinks=True)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return folder / "pgserver" / "pginstall" / "bin", "nobody"


def _call(command: list[str | Path], user: str | None) -> None:
    # Output goes to a file: the server inherits it, and would keep a pipe open for ever.
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            command,
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            timeout=2 * START_S,
            user=user,
            cwd="/",
        )
        said.seek(0)
        assert done.returncode == 0, said.read().decode(errors="replace")
