"""The text that is trained on, read once for all presets of a question.

In flows the recipe's data section; out flow its manifest and its samples in memory. Invariant: the same section
gives the same samples, and a file's end is what is validated on.
"""

from __future__ import annotations

import lzma
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data.dataset import Dataset, open_dataset
from shoal.data.manifest import Manifest
from shoal.data.prepare import prepare
from shoal.data.spec import DataSpec, TextSource
from shoal.replica.blobs import chunk_list

HELD_OUT = 2 / 90
"""Of a file, at its end: two million bytes of the ninety of the corpus that the published figures were measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    manifest: Manifest
    dataset: Dataset

    @property
    def sample_tokens(self) -> int:
        """Targets of one sample."""
        return self.manifest.context if self.manifest.kind == "tokens" else 1


def data_values(path: str | None, context: int) -> dict[str, Any]:
    """The data section for a file, or for the standard library's own text."""
    if path is None:
        return {"source": "stdlib", "context": context}
    return {"source": "text", "path": path, "context": context, "validation_fraction": HELD_OUT}


@lru_cache(maxsize=2)
def read_corpus(spec: DataSpec) -> Corpus:
    """Read and cut the source. A file that ends in `.xz` is unpacked first. Raises SH-DATA-01 to -03."""
    blobs: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = chunk_list(data).blob
        blobs[blob] = data
        return blob

    if isinstance(spec, TextSource) and isinstance(spec.path, str) and spec.path.endswith(".xz"):
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            plain = Path(folder) / "corpus"
            plain.write_bytes(_unpacked(Path(spec.path)))
            manifest = prepare(spec.model_copy(update={"path": str(plain)}), put)
    else:
        manifest = prepare(spec, put)
    return Corpus(manifest=manifest, dataset=open_dataset(manifest, blobs.__getitem__))


def _unpacked(path: Path) -> bytes:
    try:
        return lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise ShoalError("SH-DATA-01", f"{path} cannot be read: {error}", "check --corpus") from None
