"""Where things lie on this machine: `$SHOAL_HOME`, else `~/.shoal`.

In flow an option and the environment; out flow paths and the small secrets kept below them. Invariant: the
folder is its owner's alone, and a secret's file is 0600 from the moment it exists.

    coordinator/key           who the coordinator is
    coordinator/admin-token   what the HTTP API asks for
    coordinator/api-address   where the API of the coordinator that started last is
    coordinator/store.sqlite  logs, and the coordinator's promises
    coordinator/runs/RUN/     blobs, and the join token of a run
    node/                     the same for a node
    regions/RUN-NUMBER/       the same for a region whose hub this machine is, while it is lent (`shoal pool join`)
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.worlds.real.sums import check_sum, remove_sum, write_sum

HOME_VARIABLE = "SHOAL_HOME"


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator"

    @property
    def node(self) -> Path:
        return self.root / "node"

    @property
    def regions(self) -> Path:
        return self.root / "regions"

    @property
    def coordinator_key(self) -> Path:
        return self.coordinator / "key"

    @property
    def node_key(self) -> Path:
        return self.node / "key"

    @property
    def coordinator_name(self) -> Path:
        """By what a shared store tells this home's coordinator from others."""
        return self.coordinator / "name"

    @property
    def admin_token(self) -> Path:
        return self.coordinator / "admin-token"

    @property
    def api_address(self) -> Path:
        return self.coordinator / "api-address"

    @property
    def store_file(self) -> Path:
        return self.coordinator / "store.sqlite"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store_file}"

    def join_token(self, run: RunId) -> Path:
        return self.coordinator / "runs" / run / "join-token"


def find_home(option: Path | None = None) -> Home:
    """The home folder: the option, else the environment's, else `~/.shoal`. Makes nothing."""
    chosen = option or os.environ.get(HOME_VARIABLE) or Path.home() / ".shoal"
    return Home(Path(chosen).expanduser().absolute())


def make_folder(folder: Path) -> None:
    """Make the folder, its owner's alone. Raises SH-DISK-02."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unusable(folder, error) from error


def read_secret(path: Path, *, given: bool = False) -> str | None:
    """What the file holds, or None where there is none. Raises SH-KEY-01 if others may read it. One that was `given` by
    somebody is not made anew where it is deleted."""
    try:
        mode = path.stat().st_mode & 0o777
        content = path.read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ShoalError("SH-KEY-01", f"{path} cannot be read: {error}", "check the file") from error
    if os.name == "posix" and mode & 0o077:
        raise ShoalError(
            "SH-KEY-01",
            f"{path} has mode {mode:04o}: others can read this secret",
            f"run: chmod 600 {path}; if others may have read it, "
            + ("ask whoever gave it to you for another" if given else "delete it and a new one is made"),
        )
    check_sum(path)
    return content or None


def write_secret(path: Path, secret: str) -> None:
    """Keep a secret, replacing what was there. Raises SH-DISK-02."""
    make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        remove_sum(path)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        write_sum(path)
    except OSError as error:
        raise _unusable(path, error) from error


def admin_token(home: Home) -> str:
    """The HTTP API's token, made on first use."""
    known = read_secret(home.admin_token)
    if known is None:
        known = secrets.token_urlsafe(32)
        write_secret(home.admin_token, known)
    return known


def _unusable(path: Path, error: OSError) -> ShoalError:
    return ShoalError(
        "SH-DISK-02",
        f"{path}: {error.strerror or error}",
        f"make it writable, or choose another folder with --home or ${HOME_VARIABLE}",
    )
