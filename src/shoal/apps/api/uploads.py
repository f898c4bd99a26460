"""Datasets that people send: written to disk as they come, checked, and named by their content.

In flow bytes of a stranger's making, with a name; out flow files in one folder, and the recipe's `data` section for
each. Invariant: a name never becomes a path, what an archive would unpack to is bounded before anything is unpacked,
and a file that was refused is gone.
"""

from __future__ import annotations

import os
import re
import secrets
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import blake3

from shoal.apps.api.images import images_to_npz
from shoal.apps.api.models import DatasetInfo
from shoal.apps.home import make_folder
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError

PREFIX = "upload:"
MAX_UNPACKED_BYTES = 1 << 30
MOST_RATIO = 200
Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking job in a thread."""
_ID = re.compile(r"[0-9a-f]{32}")


class Uploads:
    """The datasets below one folder."""

    def __init__(self, folder: Path, images: Path) -> None:
        self._folder = folder
        self._images = images
        """Where the images lie that an uploaded CSV may name by their path."""

    async def receive(self, name: str, parts: AsyncIterator[bytes], work: Work) -> DatasetInfo:
        """Keep a dataset. Raises SH-DATA-03 for content that is not what the name says, SH-DISK-01 or -02."""
        kind = kind_of(name)
        await work(lambda: make_folder(self._folder))
        incoming = self._folder / f"{secrets.token_hex(8)}.part"
        try:
            digest, size = await _write(incoming, parts, work)
            kept: DatasetInfo = await work(lambda: self._keep(incoming, digest, size, name, kind))
            return kept
        except OSError as error:
            raise ShoalError(
                "SH-DISK-02", f"the upload cannot be kept: {error}", "free some space"
            ) from error
        finally:
            incoming.unlink(missing_ok=True)

    def path_of(self, dataset: str) -> Path:
        """The file of an upload. Raises SH-DATA-01."""
        if _ID.fullmatch(dataset):
            for path in sorted(self._folder.glob(f"{dataset}.*")):
                return path
        raise ShoalError("SH-DATA-01", f"there is no upload {printable(dataset, 40)!r}", "upload it again")

    def resolved(self, data: Any) -> Any:
        """A recipe's values with `upload:ID` replaced by the file's path."""
        if isinstance(data, dict):
            return {key: self.resolved(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.resolved(value) for value in data]
        if isinstance(data, str) and data.startswith(PREFIX):
            return str(self.path_of(data.removeprefix(PREFIX)))
        return data

    def _keep(self, incoming: Path, digest: str, size: int, name: str, kind: str) -> DatasetInfo:
        if size == 0:
            raise ShoalError("SH-DATA-02", "the upload is empty", "choose another file")
        data = CHECKS[kind](self, incoming)
        suffix = {"images": "npz", "csv": "npz"}.get(kind, kind)
        os.replace(incoming, self._folder / f"{digest}.{suffix}")
        return DatasetInfo(
            dataset=digest,
            name=printable(name, 120),
            kind=suffix,
            size_bytes=size,
            data={**data, "path": PREFIX + digest},
        )

    def _text(self, path: Path) -> dict[str, Any]:
        with open(path, "rb") as file:
            if b"\0" in file.read(1 << 16):
                raise _wrong("the file is not text", "choose a text file, or name it by what it holds")
        return {"source": "text"}

    def _jsonl(self, path: Path) -> dict[str, Any]:
        import msgspec

        with open(path, "rb") as file:
            line = file.readline(1 << 20)
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"the first line is not JSON: {error}", "one JSON object a line") from None
        texts = [key for key, value in row.items() if isinstance(value, str)] if isinstance(row, dict) else []
        if not texts:
            raise _wrong("the first line has no field with text", "one JSON object with text a line")
        return {"source": "jsonl", "field": "text" if "text" in texts else texts[0]}

    def _parquet(self, path: Path) -> dict[str, Any]:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise _wrong("this coordinator cannot read Parquet", "pip install 'shoal[parquet]'") from None
        try:
            with parquet.ParquetFile(path) as table:
                schema, metadata = table.schema_arrow, table.metadata
                unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        except Exception as error:  # A stranger's file: the reader raises what it likes.
            raise _wrong(f"it is not a Parquet file: {error}", "choose another file") from None
        _check_unpacked(unpacked, path.stat().st_size)
        texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
        if not texts:
            raise _wrong("it has no column with text", "choose a file with a column of text")
        return {"source": "parquet", "column": "text" if "text" in texts else texts[0]}

    def _npz(self, path: Path) -> dict[str, Any]:
        with _archive(path) as archive:
            names = {Path(item.filename).stem for item in archive.infolist()}
        if not {"x", "y"} <= names:
            raise _wrong(
                "the archive does not hold the arrays x and y", "save it with numpy.savez(x=..., y=...)"
            )
        return {"source": "npz"}

    def _zip(self, path: Path) -> dict[str, Any]:
        with _archive(path) as archive:
            tables = [item for item in archive.namelist() if item.lower().endswith(".csv")]
            if len(tables) != 1:
                raise _wrong("the archive must hold one CSV with the columns path and label", "add it")
            members = set(archive.namelist())

            def open_image(name: str) -> bytes:
                inside = str(Path(tables[0]).parent / name).removeprefix("./")
                if inside not in members:
                    raise _wrong(
                        f"the CSV names {printable(name, 80)!r}, which is not in the archive", "add it"
                    )
                return archive.read(inside)

            images_to_npz(archive.read(tables[0]), open_image, path)
        return {"source": "npz"}

    def _csv(self, path: Path) -> dict[str, Any]:
        folder = self._images.resolve()

        def open_image(name: str) -> bytes:
            file = (folder / name).resolve()
            if not file.is_relative_to(folder) or not file.is_file():
                raise _wrong(
                    f"the CSV names {printable(name, 80)!r}, which is not among the coordinator's images",
                    f"paths are relative to {folder.name}/ in the coordinator's home, or send a zip with them",
                )
            return file.read_bytes()

        images_to_npz(path.read_bytes(), open_image, path)
        return {"source": "npz"}


CHECKS: dict[str, Callable[[Uploads, Path], dict[str, Any]]] = {
    "txt": Uploads._text,
    "jsonl": Uploads._jsonl,
    "parquet": Uploads._parquet,
    "npz": Uploads._npz,
    "images": Uploads._zip,
    "csv": Uploads._csv,
}
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".npz": "npz", ".zip": "images"}
_SUFFIXES |= {".csv": "csv", ".txt": "txt", ".md": "txt", ".py": "txt", ".text": "txt", "": "txt"}


def kind_of(name: str) -> str:
    """What a file is, by the end of its name. Raises SH-DATA-03."""
    suffix = os.path.splitext(name.rpartition("/")[2])[1].lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(sorted(filter(None, _SUFFIXES)))
        raise _wrong(f"files of the kind {printable(suffix, 20)!r} are not understood", f"one of: {known}")
    return _SUFFIXES[suffix]


async def _write(path: Path, parts: AsyncIterator[bytes], work: Work) -> tuple[str, int]:
    hasher, size = blake3.blake3(), 0
    with await work(lambda: open(path, "xb", opener=_private)) as file:
        async for part in parts:
            hasher.update(part)
            size += len(part)
            await work(partial(file.write, part))
    return hasher.hexdigest()[:32], size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise _wrong(f"it is not an archive: {error}", "choose another file") from None
    _check_unpacked(sum(item.file_size for item in archive.infolist()), path.stat().st_size)
    return archive


def _check_unpacked(unpacked: int, packed: int) -> None:
    if unpacked > MAX_UNPACKED_BYTES or unpacked > MOST_RATIO * max(packed, 1 << 12):
        raise _wrong(
            f"it would unpack to {unpacked} bytes, from {packed}",
            f"at most {MAX_UNPACKED_BYTES} bytes, and {MOST_RATIO} times its size",
        )


def _wrong(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-DATA-03", cause, next_step)
