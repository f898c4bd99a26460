"""A CSV of images and labels to the arrays that a run trains on.

In flow rows `path,label` and a way to open a path; out flows an NPZ with `x` (float32, channels first, 0 to 1) and
`y`. Invariant: every image is bounded before its pixels are unpacked, and all have one size.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.apps.printable import printable
from shoal.base.errors import ShoalError

MAX_IMAGES, MAX_PIXELS, MAX_VALUES = 200_000, 1 << 22, 1 << 28


def images_to_npz(table: bytes, open_image: Callable[[str], bytes], target: Path) -> None:
    """Replace `target` by the arrays. Raises SH-DATA-03."""
    rows = _rows(table)
    labels = sorted({label for _, label in rows})
    arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    values = 0
    for name, _ in rows:
        array = _image(open_image(name), name)
        values += array.size
        if arrays and array.shape != arrays[0].shape:
            raise _wrong(f"{printable(name, 80)!r} has the shape {array.shape}, the first {arrays[0].shape}")
        if values > MAX_VALUES:
            raise _wrong(f"the images hold more than {MAX_VALUES} values")
        arrays.append(array)
    y = np.array([labels.index(label) for _, label in rows], dtype=np.int64)
    with open(target, "wb") as file:
        np.savez(file, x=np.stack(arrays), y=y)


def _rows(table: bytes) -> list[tuple[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(table.decode("utf-8-sig")))
        rows = [(row["path"], row["label"]) for row, _ in zip(reader, range(MAX_IMAGES + 1), strict=False)]
    except (UnicodeDecodeError, csv.Error, KeyError) as error:
        raise _wrong(f"the CSV has no columns path and label: {error}") from None
    if not rows or len(rows) > MAX_IMAGES or any(not path or label is None for path, label in rows):
        raise _wrong(f"the CSV must have 1 to {MAX_IMAGES} rows, each with a path and a label")
    return rows


def _image(data: bytes, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    try:
        from PIL import Image
    except ImportError:
        raise ShoalError("SH-DATA-01", "reading images needs pillow", "pip install 'shoal[vision]'") from None
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "BMP", "GIF", "WEBP")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _wrong(f"{printable(name, 80)!r} has more than {MAX_PIXELS} pixels")
            mode = "L" if image.mode in ("1", "L", "I", "F", "I;16") else "RGB"
            pixels = np.asarray(image.convert(mode), dtype=np.float32) / np.float32(255)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _wrong(f"{printable(name, 80)!r} is not an image: {error}") from None
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _wrong(cause: str) -> ShoalError:
    return ShoalError("SH-DATA-03", cause, "a CSV with the columns path and label, and images of one size")
