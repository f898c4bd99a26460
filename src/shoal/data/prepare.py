"""From a source to shards: done once, by the organiser.

In flows the recipe's data spec; out flow blobs (through `put`) and the manifest that names them. Invariant:
the same input gives the same bytes, and every shard stands alone: no sample spans two blobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data import sources
from shoal.data.assignment import sample_indices
from shoal.data.manifest import Manifest, Shard
from shoal.data.shards import encode_arrays
from shoal.data.spec import (
    ArrayLike,
    BpeTokenizerSpec,
    ByteTokenizerSpec,
    DigitsSource,
    NpzSource,
    OwnSource,
    TextLike,
    TokenizerSpec,
)
from shoal.data.tokeniser import ByteTokeniser, Tokeniser, parse_huggingface, train_bpe

SHARD_BYTES = 16 << 20
HEADER_ROOM_BYTES = 1024
MAX_CLASSES = 1 << 20

Put = Callable[[bytes], BlobId]
Array = npt.NDArray[Any]


def prepare(spec: TextLike | ArrayLike | OwnSource, put: Put) -> Manifest:
    """Read, tokenise, split and store the source. Raises SH-DATA-01, -02 or -03."""
    if isinstance(spec, OwnSource):
        # Samples are numbered, so that members take different ones; what they are is not the run's to know.
        described = put(spec.model_dump_json().encode())
        return Manifest(kind="arrays", dtype="float32", train=(Shard(described, spec.items),), validation=())
    if isinstance(spec, NpzSource | DigitsSource):
        return _prepare_arrays(spec, put)
    return _prepare_tokens(spec, put)


def _prepare_tokens(spec: TextLike, put: Put) -> Manifest:
    documents = sources.documents(spec)
    tokeniser = _tokeniser(spec.tokenizer, documents)
    tokens = tokeniser.encode_documents(documents)
    windows = max(0, (len(tokens) - 1) // spec.context)
    train = windows - _validation_items(
        windows, spec.validation_fraction, f"windows of {spec.context} tokens"
    )
    border = train * spec.context
    return Manifest(
        kind="tokens",
        dtype=tokeniser.dtype,
        train=tuple(_token_shards(tokens[: border + 1], spec.context, put)),
        validation=tuple(_token_shards(tokens[border:], spec.context, put)),
        context=spec.context,
        vocab_size=tokeniser.vocab_size,
        tokenizer=put(tokeniser.save()),
    )


def _tokeniser(spec: TokenizerSpec, documents: list[bytes]) -> Tokeniser:
    if isinstance(spec, ByteTokenizerSpec):
        return ByteTokeniser()
    if isinstance(spec, BpeTokenizerSpec):
        return train_bpe(documents, spec.vocab_size)
    (file,) = sources.find_files(spec.path)[:1]
    return parse_huggingface(sources.read_text(file))


def _token_shards(tokens: Array, context: int, put: Put) -> Iterator[Shard]:
    """Shards of whole windows. A window's last target is the next one's first input: shards share a token."""
    windows = (len(tokens) - 1) // context
    room = (SHARD_BYTES - HEADER_ROOM_BYTES) // tokens.itemsize - 1
    for first, items in _runs(windows, max(1, room // context)):
        part = tokens[first * context : (first + items) * context + 1]
        yield Shard(put(encode_arrays({"tokens": part})), items)


def _prepare_arrays(spec: ArrayLike, put: Put) -> Manifest:
    x, y, dtype = _checked(*sources.arrays(spec))
    order = sample_indices(0, 0, len(x), len(x))
    x, y = x[order], y[order]
    border = len(x) - _validation_items(len(x), spec.validation_fraction, "samples")
    return Manifest(
        kind="arrays",
        dtype=dtype,
        train=tuple(_array_shards(x[:border], y[:border], put)),
        validation=tuple(_array_shards(x[border:], y[border:], put)),
        sample_shape=tuple(int(size) for size in x.shape[1:]),
        classes=int(y.max()) + 1,
    )


def _array_shards(x: Array, y: Array, put: Put) -> Iterator[Shard]:
    each_bytes = x[0].nbytes + y.itemsize
    for first, items in _runs(len(x), max(1, (SHARD_BYTES - HEADER_ROOM_BYTES) // each_bytes)):
        part = slice(first, first + items)
        yield Shard(put(encode_arrays({"x": x[part], "y": y[part]})), items)


def _checked(x: Array, y: Array) -> tuple[Array, Array, Literal["uint8", "float32"]]:
    """Samples as uint8 or finite float32 and labels as int64, one for each."""
    if x.ndim < 2 or 0 in x.shape[1:] or y.ndim != 1 or len(x) != len(y):
        raise _wrong_form(f"x of shape {x.shape} and y of shape {y.shape} are not samples with a label each")
    if len(x) == 0:
        raise _too_small("no samples")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= MAX_CLASSES:
        raise _wrong_form("the labels y are not classes 0, 1, 2, ...")
    labels = y.astype(np.int64)
    if x.dtype == np.uint8:
        return x, labels, "uint8"
    if x.dtype.kind not in "fiub":
        raise _wrong_form(f"the samples x are {x.dtype}, not numbers")
    with np.errstate(over="ignore"):  # What is too large becomes infinite, and is refused as that.
        samples = x.astype(np.float32)
    if not np.isfinite(samples).all():
        raise _wrong_form("the samples x hold values that are not finite")
    return samples, labels, "float32"


def _runs(items: int, at_most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, items, at_most):
        yield first, min(at_most, items - first)


def _validation_items(items: int, fraction: float, what: str) -> int:
    if items < 2:
        raise _too_small(f"{items} {what}, and training and validation need one each")
    return min(items - 1, max(1, round(items * fraction)))


def _too_small(cause: str) -> ShoalError:
    return ShoalError("SH-DATA-02", f"the source gives {cause}", "add data, or shorten the context")


def _wrong_form(cause: str) -> ShoalError:
    return ShoalError("SH-DATA-03", cause, "check the recipe's data section against the file")
