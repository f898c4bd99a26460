"""What a run's genesis says about its data: hashed shards, in order, and how to read them.

In flow the shards that `prepare` put; out flows one small value that every node shares. Invariant: the
manifest alone, with the blobs it names, determines every sample of the run.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.base.ids import BlobId


class Shard(msgspec.Struct, frozen=True):
    """One blob and the number of samples in it."""

    blob: BlobId
    items: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Token windows of `context` over a vocabulary, or samples of `sample_shape` in `classes` classes."""

    kind: Literal["tokens", "arrays"]
    dtype: Literal["uint8", "uint16", "uint32", "float32"]
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]
    context: int = 0
    vocab_size: int = 0
    tokenizer: BlobId | None = None
    sample_shape: tuple[int, ...] = ()
    classes: int = 0

    @property
    def train_items(self) -> int:
        return sum(shard.items for shard in self.train)

    @property
    def validation_items(self) -> int:
        return sum(shard.items for shard in self.validation)


def blobs(manifest: Manifest) -> tuple[BlobId, ...]:
    """Every blob a node needs to train on this data, tokeniser first, each once."""
    first = () if manifest.tokenizer is None else (manifest.tokenizer,)
    shards = tuple(shard.blob for shard in (*manifest.train, *manifest.validation))
    return tuple(dict.fromkeys((*first, *shards)))
