"""The recipe's `data:` section.

In flows what a person wrote; out flows a checked, frozen value. Invariant: a spec names where data comes
from and how it is cut, and nothing in it depends on the machine that reads it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shoal.base.section import Section

MAX_CONTEXT = 1 << 20


class ByteTokenizerSpec(Section):
    """One token per byte: nothing to train, nothing unknown."""

    kind: Literal["byte"] = "byte"


class BpeTokenizerSpec(Section):
    """Byte-level pairs, learned from the source itself when the run is prepared."""

    kind: Literal["bpe"]
    vocab_size: int = Field(default=4096, ge=257, le=1 << 20)


class FileTokenizerSpec(Section):
    """An existing `tokenizer.json`, for starting from weights that were trained with it."""

    kind: Literal["file"]
    path: str


TokenizerSpec = Annotated[
    ByteTokenizerSpec | BpeTokenizerSpec | FileTokenizerSpec, Field(discriminator="kind")
]


Paths = str | Annotated[tuple[str, ...], Field(min_length=1)]


class _Source(Section):
    validation_fraction: float = Field(default=0.05, gt=0, le=0.5)


class _Text(_Source):
    tokenizer: TokenizerSpec = ByteTokenizerSpec()
    context: int = Field(default=256, ge=1, le=MAX_CONTEXT)
    """Tokens a model sees at once; raise it when memory allows and the text has long-range structure."""
    max_bytes: int | None = Field(default=None, ge=1)
    """Read no more than this, for a quick trial on a large corpus."""


class StdlibSource(_Text):
    """The Python standard library's own source text: on every machine, no download."""

    source: Literal["stdlib"] = "stdlib"
    include_tests: bool = False


class TextSource(_Text):
    """A text file, a folder of them (recursively), or glob patterns."""

    source: Literal["text"]
    path: Paths


class JsonlSource(_Text):
    """One JSON object a line; `field` holds the text."""

    source: Literal["jsonl"]
    path: Paths
    field: str = "text"


class ParquetSource(_Text):
    """A column of text in Parquet files. Needs the extra `parquet`."""

    source: Literal["parquet"]
    path: Paths
    column: str = "text"


class HubSource(_Text):
    """A Hugging Face dataset by name. Needs the extra `datasets`."""

    source: Literal["datasets"]
    name: str
    config: str | None = None
    split: str = "train"
    field: str = "text"


class NpzSource(_Source):
    """A NumPy archive with samples `x` and class labels `y`."""

    source: Literal["npz"]
    path: str


class DigitsSource(_Source):
    """scikit-learn's bundled 8x8 digits. Needs the extra `vision`."""

    source: Literal["digits"]


class OwnSource(Section):
    """Data that the participants' own program reads: the run knows how many samples there are, nothing else."""

    source: Literal["own"]
    items: int = Field(ge=1, lt=2**62)
    description: str = Field(default="", max_length=200)


TextLike = StdlibSource | TextSource | JsonlSource | ParquetSource | HubSource
ArrayLike = NpzSource | DigitsSource
DataSpec = Annotated[TextLike | ArrayLike | OwnSource, Field(discriminator="source")]
