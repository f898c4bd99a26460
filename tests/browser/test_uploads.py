"""Datasets of every kind, chosen in a real browser: each is taken, and the form can be started with it."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect
from process.fleet import Fleet

from .stage import Looker

TEXT = "the quick brown fox jumps over the lazy dog\n"
IMAGES = 200


def _text(path: Path) -> None:
    path.write_text(TEXT * 2000)


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"id": number, "text": TEXT * 20}) + "\n" for number in range(100)))


def _parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    words = np.random.default_rng(0).integers(0, 10_000, (200, 100)).tolist()
    parquet.write_table(pyarrow.table({"text": [" ".join(map(str, row)) for row in words]}), path)


def _npz(path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.random((IMAGES, 1, 8, 8), dtype=np.float32), y=np.arange(IMAGES) % 3)


def _table() -> str:
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["path", "label"])
    rows.writerows([f"pictures/{number}.png", "cat" if number % 2 else "dog"] for number in range(IMAGES))
    return out.getvalue()


def _picture(number: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.csv", _table())
        for number in range(IMAGES):
            archive.writestr(f"pictures/{number}.png", _picture(number))


def _csv(path: Path) -> None:
    path.write_text(_table())


KINDS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "poem.txt": (_text, "txt", "text"),
    "poems.jsonl": (_jsonl, "jsonl", "jsonl"),
    "poems.parquet": (_parquet, "parquet", "parquet"),
    "digits.npz": (_npz, "npz", "npz"),
    "pets.zip": (_zip, "npz", "npz"),
    "pets.csv": (_csv, "npz", "npz"),
}
"""By name: how it is made, what it is kept as, and the recipe's source for it."""


@pytest.mark.parametrize("name", KINDS)
def test_a_dataset_is_uploaded(looker: Looker, fleet: Fleet, tmp_path: Path, name: str) -> None:
    make, kept_as, source = KINDS[name]
    make(tmp_path / name)
    if name.endswith(".csv"):  # Its paths are relative to the coordinator's own images.
        pictures = fleet.home / "coordinator" / "images" / "pictures"
        pictures.mkdir(parents=True)
        for number in range(IMAGES):
            (pictures / f"{number}.png").write_bytes(_picture(number))
    page = looker.page
    looker.go("new")
    page.locator("#file").set_input_files(tmp_path / name)
    expect(page.locator("#file-said")).to_contain_text(f"{name}:")
    expect(page.locator("#file-said")).to_contain_text(f"of {kept_as}")
    expect(page.get_by_label("source", exact=True)).to_have_value(source)
    expect(page.get_by_role("button", name="Start")).to_be_enabled()
    expect(page.locator(".stats.narrow")).to_contain_text("node hours")
    expect(page.locator(".wrong")).to_have_count(0)


def test_what_is_no_dataset_is_refused_beside_the_field(looker: Looker, tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    looker.go("new")
    looker.page.locator("#file").set_input_files(tmp_path / "broken.npz")
    failure = looker.page.locator("#file-said .failure")
    expect(failure).to_contain_text("SH-DATA-03")
    expect(failure).to_contain_text("it is not an archive")
    looker.complaints.clear()  # The browser itself reports the answer's status.
