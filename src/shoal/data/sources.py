"""Where documents and arrays come from.

In flows a source's spec; out flow documents as bytes, or samples with labels. Invariant: the order is fixed
by the content alone (never by the file system), and shuffled by a fixed permutation, so that the tail kept
for validation looks like the rest.
"""

from __future__ import annotations

import codecs
import glob
import importlib
import importlib.util
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.base.errors import ShoalError
from shoal.data.assignment import sample_indices
from shoal.data.spec import (
    ArrayLike,
    DigitsSource,
    HubSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
    TextLike,
    TextSource,
)

T = TypeVar("T")
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def documents(spec: TextLike) -> list[bytes]:
    """The source's documents, shuffled, at most `max_bytes` of them in all."""
    match spec:
        case StdlibSource():
            files = _shuffled(_stdlib_files(spec.include_tests))
            return list(_capped(map(_read, files), spec.max_bytes))
        case TextSource():
            return list(_capped(map(_read, _shuffled(find_files(spec.path))), spec.max_bytes))
        case JsonlSource():
            rows = _jsonl_rows(find_files(spec.path), spec.field)
        case ParquetSource():
            rows = _parquet_rows(find_files(spec.path), spec.column)
        case HubSource():
            rows = _hub_rows(spec)
    return _shuffled(list(_capped(rows, spec.max_bytes)))


def arrays(spec: ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The source's samples and labels as they are stored, unchecked and in their own order."""
    return _digits() if isinstance(spec, DigitsSource) else _npz(Path(spec.path))


def find_files(path: str | tuple[str, ...]) -> list[Path]:
    """The files a path, folder or glob names, each once, in order. Raises SH-DATA-01 where there is none."""
    found: set[Path] = set()
    for pattern in (path,) if isinstance(path, str) else path:
        try:
            files = set(_files_of(pattern))
        except OSError as error:
            raise _unreadable(pattern, error.strerror or str(error)) from error
        except ValueError as error:  # A character that no path can hold.
            raise _unreadable(repr(pattern), str(error)) from error
        if not files:
            raise _unreadable(pattern, "there is no such file")
        found |= files
    return sorted(found)


def _files_of(pattern: str) -> Iterator[Path]:
    if not pattern:  # As a path, it would be the folder that the coordinator was started in.
        raise _unreadable("an empty path", "it names no file")
    there = Path(pattern).exists()
    for match in [Path(pattern)] if there else map(Path, glob.glob(pattern, recursive=True)):
        if match.is_dir():
            yield from filter(Path.is_file, match.rglob("*"))
        else:
            yield _plain_file(match)


def _plain_file(path: Path) -> Path:
    """The path itself. Raises SH-DATA-01 for a pipe or a device: reading one may never end."""
    if not path.is_file():
        raise _unreadable(str(path), "it is not a file" if path.exists() else "there is no such file")
    return path


def read_text(path: Path) -> str:
    """A file's text. Raises SH-DATA-01 or -03."""
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise _wrong_form(f"{path} is not UTF-8: {error}") from error


def _stdlib_files(include_tests: bool) -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = FOREIGN_FOLDERS if include_tests else FOREIGN_FOLDERS | TEST_FOLDERS
    files = sorted((file.relative_to(root) for file in root.rglob("*.py")), key=lambda file: file.as_posix())
    return [root / file for file in files if skipped.isdisjoint(file.parts)]


def _shuffled(values: Sequence[T]) -> list[T]:
    if not values:
        return []
    return [values[place] for place in sample_indices(0, 0, len(values), len(values))]


def _capped(parts: Iterable[bytes], max_bytes: int | None) -> Iterator[bytes]:
    left = max_bytes
    for part in parts:
        if left is None:
            yield part
            continue
        if left <= 0:
            return
        yield _cut(part, left)
        left -= len(part)


def _cut(text: bytes, size: int) -> bytes:
    """At most `size` bytes, without the pieces of a UTF-8 character that would be cut in two."""
    stop = min(size, len(text))
    while size - stop < 3 and 0 < stop < len(text) and text[stop] & 0xC0 == 0x80:
        stop -= 1
    return text[:stop]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(str(path), str(error)) from error


def _jsonl_rows(files: list[Path], field: str) -> Iterator[bytes]:
    decoder = msgspec.json.Decoder()
    for file in files:
        for number, line in enumerate(_read(file).removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _wrong_form(f"{file}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise _wrong_form(f"{file}, line {number} is not an object")
            yield _row_text(row.get(field), f"{file}, line {number}", field)


def _parquet_rows(files: list[Path], column: str) -> Iterator[bytes]:
    parquet = _extra("pyarrow.parquet", "parquet")
    for file in files:
        try:
            table = parquet.ParquetFile(file)
        except Exception as error:
            raise _unreadable(str(file), f"it is not a Parquet file: {error}") from error
        if column not in table.schema_arrow.names:
            raise _wrong_form(f"{file} has no column {column!r}, only {', '.join(table.schema_arrow.names)}")
        for number, value in enumerate(_parquet_values(table, column, file), start=1):
            yield _row_text(value, f"{file}, row {number}", column)


def _parquet_values(table: Any, column: str, file: Path) -> Iterator[object]:
    try:
        for batch in table.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()
    except Exception as error:  # An altered page ends in any of the library's errors, or the system's.
        raise _unreadable(str(file), f"its column {column!r} is damaged: {error}") from error


def _hub_rows(spec: HubSource) -> Iterator[bytes]:
    datasets = _extra("datasets", "datasets")
    try:
        rows = datasets.load_dataset(spec.name, spec.config, split=spec.split)
    except Exception as error:
        raise _unreadable(spec.name, str(error)) from error
    for number, row in enumerate(rows):
        yield _row_text(row.get(spec.field), f"{spec.name}, row {number}", spec.field)


def _row_text(value: object, where: str, field: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong_form(f"{where} has no text in {field!r}")
    return value.encode(errors="surrogatepass")


def _digits() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """From the file that scikit-learn comes with: to import all of it takes a second, and 80 MB for good."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz" if spec and spec.origin else None
    if file is None or not file.is_file():
        images, labels = _extra("sklearn.datasets", "vision").load_digits(return_X_y=True)
    else:
        rows = np.loadtxt(file, delimiter=",")
        images, labels = rows[:, :-1], rows[:, -1].astype(int)
    return (images.astype(np.float32) / 16).reshape(-1, 1, 8, 8), labels


def _npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        if not zipfile.is_zipfile(_plain_file(path)):
            raise _unreadable(str(path), "it is not an archive as numpy.savez writes it")
        with np.load(path, allow_pickle=False) as archive:
            if not {"x", "y"} <= set(archive.files):
                raise _wrong_form(f"{path} does not hold the arrays x and y")
            return archive["x"], archive["y"]
    except ShoalError:
        raise
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(str(path), str(error)) from error
    except MemoryError as error:
        raise _unreadable(str(path), f"it does not fit into memory: {error}") from error
    except Exception as error:  # Headers, packing and numbers of an altered archive fail in many ways.
        raise _wrong_form(f"{path} is not an archive of plain arrays: {error}") from error


def _extra(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ShoalError(
            "SH-DATA-01",
            f"this source needs {module}, which is not installed",
            f"pip install 'shoal[{extra}]'",
        ) from error


def _unreadable(what: str, why: str) -> ShoalError:
    return ShoalError("SH-DATA-01", f"{what} cannot be read: {why}", "check the recipe's data section")


def _wrong_form(cause: str) -> ShoalError:
    return ShoalError("SH-DATA-03", cause, "check the recipe's data section against the file")
