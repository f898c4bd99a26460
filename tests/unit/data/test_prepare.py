import codecs
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from shoal.base.errors import ShoalError
from shoal.data import prepare as prepare_module
from shoal.data.dataset import open_dataset
from shoal.data.manifest import Manifest, blobs
from shoal.data.prepare import prepare
from shoal.data.sources import documents
from shoal.data.spec import DataSpec, TextSource

from .store import MemoryBlobs

SPEC: TypeAdapter[Any] = TypeAdapter(DataSpec)
TEXT = b"".join(b"line %04d of a little corpus\n" % n for n in range(200))


def prepared(section: dict[str, Any]) -> tuple[Manifest, MemoryBlobs]:
    store = MemoryBlobs()
    return prepare(SPEC.validate_python(section), store.put), store


def train_bytes(manifest: Manifest, store: MemoryBlobs) -> bytes:
    """The training stream, put together from its windows."""
    dataset = open_dataset(manifest, store.read)
    batch = dataset.batch(np.arange(dataset.train_items))
    ids = [*batch.inputs.flatten().tolist(), int(batch.targets[-1, -1])]
    return dataset.tokeniser().decode(ids).encode()


def test_a_text_file_becomes_windows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    manifest, store = prepared({"source": "text", "path": str(tmp_path / "a.txt"), "context": 16})
    assert (manifest.kind, manifest.dtype, manifest.vocab_size) == ("tokens", "uint8", 256)
    windows = (len(TEXT) - 1) // 16
    assert manifest.train_items + manifest.validation_items == windows
    assert manifest.validation_items == round(windows * 0.05)
    assert train_bytes(manifest, store) == TEXT[: manifest.train_items * 16 + 1]
    assert set(blobs(manifest)) == set(store.held)


def test_shards_are_bounded_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    monkeypatch.setattr(prepare_module, "SHARD_BYTES", 2048)
    manifest, store = prepared({"source": "text", "path": str(tmp_path / "a.txt"), "context": 16})
    assert len(manifest.train) > 3 and all(len(store.read(s.blob)) <= 2048 for s in manifest.train)
    assert train_bytes(manifest, store) == TEXT[: manifest.train_items * 16 + 1]


def test_folders_and_globs_are_read_in_one_fixed_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name * 40)
    by_folder = documents(TextSource(source="text", path=str(tmp_path)))
    by_globs = documents(
        TextSource(source="text", path=(str(tmp_path / "deep" / "*"), str(tmp_path / "**" / "*.txt")))
    )
    assert sorted(by_folder) == sorted(name.encode() * 40 for name in ("a.txt", "b.txt", "deep/c.txt"))
    assert by_folder == by_globs


def test_the_cap_keeps_characters_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("数据" * 100, encoding="utf-8")
    for cap in range(1, 12):
        (text,) = documents(TextSource(source="text", path=str(tmp_path / "a.txt"), max_bytes=cap))
        assert text.decode() == "数据数据"[: cap // 3]


def test_jsonl(tmp_path: Path) -> None:
    rows = [{"body": f"document {n} " * 5} for n in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    section = {"source": "jsonl", "path": str(tmp_path / "a.jsonl"), "field": "body", "context": 8}
    manifest, store = prepared(section)
    assert b"document 7 document 7" in train_bytes(manifest, store)


def test_jsonl_as_other_systems_write_it(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"document {n} " * 5}) for n in range(50)]
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + "\r\n".join(rows).encode())
    manifest, store = prepared({"source": "jsonl", "path": str(tmp_path / "a.jsonl"), "context": 8})
    assert b"document 0 document 0" in train_bytes(manifest, store)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": [f"row {n} of the table. " * 3 for n in range(40)], "n": list(range(40))})
    parquet.write_table(table, tmp_path / "a.parquet")
    section = {"source": "parquet", "path": str(tmp_path / "a.parquet"), "context": 8}
    manifest, store = prepared(section)
    assert b"row 7 of the table." in train_bytes(manifest, store)
    with pytest.raises(ShoalError, match=r"SH-DATA-03.*no column 'body'"):
        prepared({**section, "column": "body"})
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        prepared({**section, "column": "n"})


def test_bpe(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    tokenizer = {"kind": "bpe", "vocab_size": 280}
    section = {"source": "text", "path": str(tmp_path / "a.txt"), "context": 8, "tokenizer": tokenizer}
    manifest, store = prepared(section)
    assert manifest.dtype == "uint16" and 257 <= manifest.vocab_size <= 280
    assert TEXT.startswith(train_bytes(manifest, store))
    exported = open_dataset(manifest, store.read).tokeniser().to_huggingface()
    (tmp_path / "tokenizer.json").write_text(exported)
    tokenizer = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    assert prepared({**section, "tokenizer": tokenizer})[0] == manifest


def test_stdlib_is_the_default_corpus() -> None:
    manifest, store = prepared({"source": "stdlib", "max_bytes": 200_000, "context": 64})
    assert manifest.train_items > 2500
    assert b"import " in train_bytes(manifest, store)


def test_digits() -> None:
    pytest.importorskip("sklearn")
    manifest, store = prepared({"source": "digits", "validation_fraction": 0.1})
    assert (manifest.kind, manifest.sample_shape, manifest.classes) == ("arrays", (1, 8, 8), 10)
    assert (manifest.train_items, manifest.validation_items) == (1617, 180)
    batch = open_dataset(manifest, store.read).batch(np.arange(1617))
    assert batch.inputs.max() == 1.0 and batch.targets.bincount().min() > 140


@pytest.mark.parametrize("dtype", ["uint8", "float64", "int16"])
def test_npz(tmp_path: Path, dtype: str) -> None:
    x = np.arange(20 * 6).reshape(20, 2, 3).astype(dtype)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 4)
    manifest, store = prepared({"source": "npz", "path": str(tmp_path / "a.npz")})
    assert manifest.dtype == ("uint8" if dtype == "uint8" else "float32")
    batch = open_dataset(manifest, store.read).batch(np.arange(19))
    scale = 255 if dtype == "uint8" else 1
    first = np.rint(batch.inputs[:, 0, 0].numpy() * scale).astype(int) // 6
    assert np.array_equal(first % 4, batch.targets.numpy())


BAD_ARCHIVES: dict[str, dict[str, Any]] = {
    "no labels": {"x": np.zeros((4, 2))},
    "lengths differ": {"x": np.zeros((4, 2)), "y": np.zeros(3, dtype=int)},
    "labels are not classes": {"x": np.zeros((4, 2)), "y": np.zeros(4)},
    "labels are negative": {"x": np.zeros((4, 2)), "y": np.full(4, -1)},
    "samples are not finite": {"x": np.full((4, 2), np.nan), "y": np.zeros(4, dtype=int)},
    "samples are not numbers": {"x": np.full((4, 2), "a"), "y": np.zeros(4, dtype=int)},
    "samples have no values": {"x": np.zeros((4, 0)), "y": np.zeros(4, dtype=int)},
    "samples are too large": {"x": np.full((4, 2), 1e300), "y": np.zeros(4, dtype=int)},
    "pickled objects": {"x": np.array([[{}]] * 4, dtype=object), "y": np.zeros(4, dtype=int)},
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_npz_of_the_wrong_form(tmp_path: Path, case: str) -> None:
    np.savez(tmp_path / "a.npz", **BAD_ARCHIVES[case])
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        prepared({"source": "npz", "path": str(tmp_path / "a.npz")})


def test_no_samples_is_too_small(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((0, 2)), y=np.zeros(0, dtype=int))
    with pytest.raises(ShoalError, match="SH-DATA-02"):
        prepared({"source": "npz", "path": str(tmp_path / "a.npz")})


@pytest.mark.parametrize("source", ["text", "jsonl", "parquet", "npz"])
def test_a_missing_file(source: str, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="SH-DATA-01"):
        prepared({"source": source, "path": str(tmp_path / "none.*")})


@pytest.mark.parametrize("content", [TEXT, b""])
@pytest.mark.parametrize("source", ["npz", "parquet"])
def test_a_file_that_is_something_else(source: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ShoalError, match=r"SH-DATA-0[13]"):
        prepared({"source": source, "path": str(tmp_path / "a")})


@pytest.mark.parametrize("source", ["text", "jsonl", "parquet", "npz"])
@pytest.mark.parametrize("path", ["", "x" * 5000, "\0", "a\0/*", "/dev/zero", "PIPE"])
def test_a_path_that_names_no_file(source: str, path: str, tmp_path: Path) -> None:
    if path == "PIPE":
        path = str(tmp_path / "pipe")
        os.mkfifo(path)
    with pytest.raises(ShoalError, match="SH-DATA-01"):
        prepared({"source": source, "path": path})


def archive_of(header: bytes) -> bytes:
    """An archive of NumPy's whose array `x` has this header, and no values."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("y.npy", b"")
    return file.getvalue()


def of_another_packing() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros((4, 2)), y=np.zeros(4, dtype=int))
    data = bytearray(file.getvalue())
    data[8] = data[data.index(b"PK\x01\x02") + 10] = 99
    return bytes(data)


@pytest.mark.parametrize(
    "content",
    [
        archive_of(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 400), }\n"),
        archive_of(b"{'descr': " + b"(" * 200 + b"\n"),
        of_another_packing(),
    ],
    ids=["petabytes", "header", "packing"],
)
def test_an_archive_that_was_altered(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ShoalError, match=r"SH-DATA-0[13].*a\.npz"):
        prepared({"source": "npz", "path": str(tmp_path / "a.npz")})


def test_a_parquet_file_that_was_altered_or_has_empty_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    file = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": [f"row {n}" for n in range(5000)]}), file)
    data = bytearray(file.read_bytes())
    data[30:60] = b"\xff" * 30
    file.write_bytes(data)
    with pytest.raises(ShoalError, match=r"SH-DATA-01.*damaged"):
        prepared({"source": "parquet", "path": str(file)})
    parquet.write_table(arrow.table({"text": ["fine", None]}), file)
    with pytest.raises(ShoalError, match=r"SH-DATA-03.*row 2"):
        prepared({"source": "parquet", "path": str(file)})


def test_a_tokeniser_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    tokenizer = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    with pytest.raises(ShoalError, match=r"SH-DATA-03.*tokenizer\.json is not UTF-8"):
        prepared({"source": "text", "path": str(tmp_path / "a.txt"), "tokenizer": tokenizer})


@pytest.mark.parametrize("line", ["not json", "[1]", '{"other": "x"}', '{"text": 5}', "[" * 100_000])
def test_jsonl_of_the_wrong_form(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + line + "\n")
    with pytest.raises(ShoalError, match=r"SH-DATA-03.*line 2"):
        prepared({"source": "jsonl", "path": str(tmp_path / "a.jsonl")})


@pytest.mark.parametrize("size", [0, 1, 16, 32])
def test_too_little_text(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * size)
    with pytest.raises(ShoalError, match="SH-DATA-02"):
        prepared({"source": "text", "path": str(tmp_path / "a.txt"), "context": 16})


def test_just_enough_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 33)
    manifest, _ = prepared({"source": "text", "path": str(tmp_path / "a.txt"), "context": 16})
    assert (manifest.train_items, manifest.validation_items) == (1, 1)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ShoalError, match=r"SH-DATA-01.*shoal\[datasets\]"):
        prepared({"source": "datasets", "name": "wikitext"})


@pytest.mark.parametrize(
    "section",
    [
        {"source": "nowhere"},
        {"source": "text"},
        {"source": "stdlib", "context": 0},
        {"source": "stdlib", "validation_fraction": 0},
        {"source": "stdlib", "colour": "red"},
        {"source": "stdlib", "tokenizer": {"kind": "bpe", "vocab_size": 100}},
        {"source": "digits", "context": 5},
    ],
)
def test_sections_that_are_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SPEC.validate_python(section)


def test_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.txt").write_bytes(TEXT * (number + 1))
    section = {"source": "text", "path": str(tmp_path), "tokenizer": {"kind": "bpe", "vocab_size": 280}}
    code = (
        "import blake3, msgspec, sys; from shoal.data.prepare import prepare;"
        "from pydantic import TypeAdapter;"
        "from shoal.data.spec import DataSpec;"
        f"spec = TypeAdapter(DataSpec).validate_python({section!r});"
        "sys.stdout.buffer.write(msgspec.json.encode(prepare(spec, lambda b: blake3.blake3(b).hexdigest())))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "99"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert msgspec.json.decode(done.stdout, type=Manifest) == prepared(section)[0]
