"""Where a checkpoint's folder may go and come from: this disk, S3 and the like, IPFS, a torrent.

In flow a folder and an address; out flows the address to fetch it by, or the folder again. Invariant: a place only
moves bytes; what comes back is checked by `folders.read_folder`, so that no place has to be trusted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

import httpx

from shoal.base.errors import ShoalError

T = TypeVar("T")
IPFS_VARIABLE = "SHOAL_IPFS_API"
IPFS_DEFAULT = "http://127.0.0.1:5001"
ANSWER_S = 60.0
MAX_FILES = 100_000
_PIECE = 1 << 20
Moved = Callable[[int, int], None]
"""Hears how many bytes of how many are there."""


def unheard(done: int, total: int) -> None:
    """Nobody wants to know."""


class Place(Protocol):
    def send(self, folder: Path) -> str:
        """Put every file of the folder there; the address that brings it back. Raises SH-CKPT-06."""

    def bring(self, folder: Path) -> None:
        """Fetch every file into the folder, which is empty. Raises SH-CKPT-06."""


def open_place(address: str, moved: Moved = unheard) -> Place:
    """The place that an address names: a path, `s3://bucket/way` (or any of fsspec's), `ipfs://[CID]`, `magnet:...` or
    a `.torrent` file. Raises SH-CKPT-06. `moved` hears of bytes that come and go over a network, but for what IPFS is
    sent, which is one request."""
    if address.startswith("magnet:") or (address.endswith(".torrent") and "://" not in address):
        from shoal.checkpoint.torrents import TorrentPlace

        return TorrentPlace(address, moved)
    if address.startswith("ipfs://"):
        return IpfsPlace(address.removeprefix("ipfs://"), moved)
    if "://" in address and not address.startswith("file://"):
        return FsspecPlace(address, moved)
    return FolderPlace(Path(address.removeprefix("file://")))


def files_in(folder: Path) -> list[PurePosixPath]:
    """Every file below a folder, by its path in it, sorted."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [PurePosixPath(path) for path in sorted(found)]


def inside(folder: Path, path: str) -> Path:
    """Where a stranger's file of this name goes: below the folder, or nowhere. Raises SH-CKPT-06."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or any(part in ("..", "") for part in parts) or "\\" in path:
        raise unreachable("the place", f"it has a file of the name {path[:80]!r}")
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def unreachable(where: str, why: object) -> ShoalError:
    return ShoalError("SH-CKPT-06", f"{where}: {why}", "check the address, the network and the credentials")


class FolderPlace:
    """A folder of this machine, or of one that is mounted here."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, folder: Path) -> str:
        return self._copy(folder, self._path)

    def bring(self, folder: Path) -> None:
        if not self._path.is_dir():
            raise unreachable(str(self._path), "there is no such folder")
        self._copy(self._path, folder)

    def _copy(self, source: Path, target: Path) -> str:
        try:
            shutil.copytree(source, target, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise unreachable(str(self._path), error) from error
        return str(self._path)


class FsspecPlace:
    """Anything that `fsspec` has a driver for: S3 and what speaks like it, GCS, Azure, SFTP, WebDAV, memory."""

    def __init__(self, address: str, moved: Moved = unheard) -> None:
        self._address, self._moved = address.rstrip("/"), moved

    def send(self, folder: Path) -> str:
        files, root = self._open()
        try:
            sizes = {path: (folder / path).stat().st_size for path in files_in(folder)}
            for path, heard in self._counted(sizes):
                target = f"{root}/{path}"
                files.makedirs(target.rpartition("/")[0], exist_ok=True)
                files.put_file(str(folder / path), target, callback=heard)
        except Exception as error:  # Drivers raise what they like.
            raise unreachable(self._address, error) from error
        return self._address

    def bring(self, folder: Path) -> None:
        files, root = self._open()
        try:
            found = dict(sorted(files.find(root, detail=True).items())[:MAX_FILES])
            sizes = {path: about.get("size") or 0 for path, about in found.items()}
            for path, heard in self._counted(sizes):
                target = inside(folder, path.removeprefix(root).lstrip("/"))
                files.get_file(path, str(target), callback=heard)
        except ShoalError:
            raise
        except Exception as error:  # As above.
            raise unreachable(self._address, error) from error
        if not found:
            raise unreachable(self._address, "nothing is there")

    def _counted(self, sizes: dict[T, int]) -> Iterator[tuple[T, Any]]:
        """Files, each with what its driver tells of its bytes."""
        calls: Any = importlib.import_module("fsspec.callbacks")
        done, total = 0, sum(sizes.values())
        for path, size in sizes.items():
            before = done
            yield (
                path,
                calls.Callback(hooks={"moved": lambda _, new, at=before: self._moved(at + new, total)}),
            )
            done += size
            self._moved(done, total)

    def _open(self) -> tuple[Any, str]:
        try:
            opened: Any = importlib.import_module("fsspec.core")
            files, root = opened.url_to_fs(self._address)
        except (ImportError, ValueError) as error:
            raise ShoalError(
                "SH-CKPT-06",
                f"{self._address}: {error}",
                "name a place by s3:// or another kind that fsspec knows; for most: pip install 'shoal[places]'",
            ) from error
        return files, str(root).rstrip("/")


@dataclass(slots=True)
class _Told:
    """How much of several files was read."""

    moved: Moved
    total: int
    done: int = 0


class _ToldFile(io.FileIO):
    """A file that tells how much of it was read."""

    def __init__(self, path: Path, told: _Told) -> None:
        super().__init__(path)
        self._told = told

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size) or b""
        self._told.done += len(piece)
        self._told.moved(self._told.done, self._told.total)
        return piece


class IpfsPlace:
    """An IPFS node, by its HTTP API (`$SHOAL_IPFS_API`, else this machine's)."""

    def __init__(self, name: str, moved: Moved = unheard) -> None:
        self._name, self._moved = name.strip("/"), moved
        self._api = os.environ.get(IPFS_VARIABLE, IPFS_DEFAULT).rstrip("/")

    def send(self, folder: Path) -> str:
        """Add the folder and pin it; `ipfs://CID`."""
        options = {"cid-version": "1", "pin": "true", "wrap-with-directory": "true"}
        paths = files_in(folder)
        told = _Told(self._moved, sum((folder / path).stat().st_size for path in paths))
        with contextlib.ExitStack() as opened:
            parts = [
                ("file", (str(path), opened.enter_context(_ToldFile(folder / path, told)))) for path in paths
            ]
            answer = self._ask("add", params=options, files=parts)
        added = [json.loads(line) for line in answer.text.splitlines() if line.strip()]
        root = next((item["Hash"] for item in added if item.get("Name") == ""), None)
        if root is None:
            raise unreachable(self._api, "it did not say where the folder is")
        return f"ipfs://{root}"

    def bring(self, folder: Path) -> None:
        found = list(islice(self._list(self._name, ""), MAX_FILES + 1))
        if len(found) > MAX_FILES:
            raise unreachable(self._api, "the folder has too many files")
        done, total = 0, sum(size for _, size in found)
        for path, _ in found:
            with open(inside(folder, path), "wb") as target:
                for piece in self._stream(f"{self._name}/{path}"):
                    done += target.write(piece)
                    self._moved(done, total)

    def _list(self, name: str, below: str) -> Iterator[tuple[str, int]]:
        """The paths of all files below a folder, with their sizes."""
        answer = self._ask("ls", params={"arg": name}).json()
        for link in answer["Objects"][0]["Links"]:
            path = f"{below}{link['Name']}"
            if link["Type"] == 1:
                yield from self._list(f"{name}/{link['Name']}", path + "/")
            else:
                yield path, int(link.get("Size") or 0)

    def _stream(self, name: str) -> Iterator[bytes]:
        with (
            self._client() as client,
            client.stream("POST", self._url("cat"), params={"arg": name}) as answer,
        ):
            if not answer.is_success:
                raise unreachable(self._api, f"cat answered {answer.status_code}")
            yield from answer.iter_bytes(_PIECE)

    def _ask(self, what: str, **options: Any) -> httpx.Response:
        try:
            with self._client() as client:
                answer = client.post(self._url(what), **options)
        except httpx.HTTPError as error:
            raise unreachable(self._api, error or type(error).__name__) from error
        if not answer.is_success:
            raise unreachable(self._api, f"{what} answered {answer.status_code}: {answer.text[:200]}")
        return answer

    def _client(self) -> httpx.Client:
        return httpx.Client(timeout=ANSWER_S, trust_env=False)

    def _url(self, what: str) -> str:
        return f"{self._api}/api/v0/{what}"
