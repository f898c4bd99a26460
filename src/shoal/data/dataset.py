"""From a manifest and its blobs to batches.

In flow sample indices; out flow tensors on the CPU. Invariant: a batch is a function of the manifest and the
indices, whichever machine makes it; shards are read when first needed and checked against the manifest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.disk import Buffer
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data.assignment import Indices
from shoal.data.manifest import Manifest, Shard
from shoal.data.shards import decode_arrays
from shoal.data.tokeniser import Tokeniser, load_tokeniser

Array = npt.NDArray[Any]
Read = Callable[[BlobId], Buffer]
Part = Literal["train", "validation"]

CACHE_BYTES = 1 << 30


class Batch(NamedTuple):
    """inputs: int64 [B, T] or float32 [B, ...]; targets: int64 [B, T] or [B]."""

    inputs: torch.Tensor
    targets: torch.Tensor


class _Shards:
    """The shards of one part, by sample index, with the recently used ones in memory."""

    def __init__(self, manifest: Manifest, shards: tuple[Shard, ...], read: Read, cache_bytes: int) -> None:
        self._manifest = manifest
        self._shards = shards
        self._read = read
        self._ends = np.cumsum([shard.items for shard in shards], dtype=np.int64)
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[int, dict[str, Array]] = OrderedDict()
        self.items = int(self._ends[-1]) if shards else 0

    def gather(self, indices: Indices) -> tuple[Array, Array]:
        """Inputs and targets of these samples, in their order."""
        if not indices.size or int(indices.min()) < 0 or int(indices.max()) >= self.items:
            raise IndexError(f"a batch takes samples 0 to {self.items - 1}, and at least one")
        owners = np.searchsorted(self._ends, indices, side="right")
        numbers = np.unique(owners)
        if len(numbers) == 1:
            return self._pick(int(numbers[0]), indices)
        places = [np.flatnonzero(owners == number) for number in numbers]
        picked = [self._pick(int(n), indices[where]) for n, where in zip(numbers, places, strict=True)]
        back = np.argsort(np.concatenate(places), kind="stable")
        inputs, targets = (np.concatenate(column)[back] for column in zip(*picked, strict=True))
        return inputs, targets

    def _pick(self, owner: int, indices: Indices) -> tuple[Array, Array]:
        arrays = self._open(owner)
        local = indices - (self._ends[owner] - self._shards[owner].items)
        if self._manifest.kind == "arrays":
            x = arrays["x"][local]
            scaled = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)
            return scaled, arrays["y"][local].astype(np.int64)
        context = self._manifest.context
        windows = (local * context)[:, None] + np.arange(context + 1)
        tokens = arrays["tokens"][windows].astype(np.int64)
        return tokens[:, :-1], tokens[:, 1:]

    def _open(self, owner: int) -> dict[str, Array]:
        if owner in self._cached:
            self._cached.move_to_end(owner)
            return self._cached[owner]
        arrays = decode_arrays(self._read(self._shards[owner].blob))
        _check_shard(self._manifest, self._shards[owner], arrays)
        self._cached[owner] = arrays
        while len(self._cached) > 1 and self._held_bytes() > self._cache_bytes:
            self._cached.popitem(last=False)
        return arrays

    def _held_bytes(self) -> int:
        return sum(array.nbytes for arrays in self._cached.values() for array in arrays.values())


class Dataset:
    """Batches by sample index from the training or the validation part."""

    def __init__(self, manifest: Manifest, read: Read, cache_bytes: int = CACHE_BYTES) -> None:
        self.manifest = manifest
        self._read = read
        self._parts: dict[Part, _Shards] = {
            "train": _Shards(manifest, manifest.train, read, cache_bytes),
            "validation": _Shards(manifest, manifest.validation, read, cache_bytes),
        }

    @property
    def train_items(self) -> int:
        return self._parts["train"].items

    @property
    def validation_items(self) -> int:
        return self._parts["validation"].items

    def batch(self, indices: Indices, part: Part = "train") -> Batch:
        """These samples, in this order. Raises IndexError outside the part, SH-DATA-03 on a bad shard."""
        inputs, targets = self._parts[part].gather(indices)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))

    def tokeniser(self) -> Tokeniser:
        """The run's tokeniser. Raises SH-DATA-03 where the data is not text."""
        if self.manifest.tokenizer is None:
            raise ShoalError("SH-DATA-03", "this run's data is not text", "use a run on a text source")
        return load_tokeniser(bytes(self._read(self.manifest.tokenizer)))


def open_dataset(manifest: Manifest, read: Read, cache_bytes: int = CACHE_BYTES) -> Dataset:
    """The manifest's samples. `read` gives a blob's bytes; a view of a mapped file saves memory.

    Raise `cache_bytes` when a corpus is larger than it and `read` is slow: samples are drawn from all shards.
    """
    return Dataset(manifest, read, cache_bytes)


def _check_shard(manifest: Manifest, shard: Shard, arrays: dict[str, Array]) -> None:
    found = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    expected: dict[str, tuple[str, tuple[int, ...]]]
    if manifest.kind == "tokens":
        expected = {"tokens": (manifest.dtype, (shard.items * manifest.context + 1,))}
    else:
        samples = (manifest.dtype, (shard.items, *manifest.sample_shape))
        expected = {"x": samples, "y": ("int64", (shard.items,))}
    top = manifest.vocab_size if manifest.kind == "tokens" else manifest.classes
    ids = arrays.get("tokens", arrays.get("y"))
    if found != expected or ids is None or int(ids.max()) >= top or int(ids.min()) < 0:
        raise ShoalError(
            "SH-DATA-03", f"shard {shard.blob} does not hold what the manifest says", "prepare the data again"
        )
