import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data.dataset import open_dataset
from shoal.data.manifest import Manifest, Shard
from shoal.data.shards import encode_arrays
from shoal.data.tokeniser import ByteTokeniser

from .store import MemoryBlobs

CONTEXT = 4
SIZES = (3, 1, 5)


def token_run() -> tuple[Manifest, MemoryBlobs]:
    """Three shards of 3, 1 and 5 windows over the bytes 0, 1, 2, ..."""
    store = MemoryBlobs()
    shards, first = [], 0
    for items in SIZES:
        tokens = np.arange(first * CONTEXT, (first + items) * CONTEXT + 1, dtype=np.uint8)
        shards.append(Shard(store.put(encode_arrays({"tokens": tokens})), items))
        first += items
    manifest = Manifest(
        kind="tokens",
        dtype="uint8",
        train=tuple(shards),
        validation=(shards[1],),
        context=CONTEXT,
        vocab_size=256,
        tokenizer=store.put(ByteTokeniser().save()),
    )
    return manifest, store


@given(st.lists(st.integers(min_value=0, max_value=sum(SIZES) - 1), min_size=1, max_size=20))
def test_windows_come_in_the_order_asked_for(wanted: list[int]) -> None:
    manifest, store = token_run()
    batch = open_dataset(manifest, store.read).batch(np.array(wanted))
    expected = np.array(wanted)[:, None] * CONTEXT + np.arange(CONTEXT)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert np.array_equal(batch.inputs.numpy(), expected)
    assert np.array_equal(batch.targets.numpy(), expected + 1)


def test_parts_are_counted_and_read_apart() -> None:
    manifest, store = token_run()
    dataset = open_dataset(manifest, store.read)
    assert (dataset.train_items, dataset.validation_items) == (9, 1)
    assert dataset.batch(np.array([0]), "validation").inputs[0, 0] == 3 * CONTEXT


@pytest.mark.parametrize("wanted", [[], [-1], [9]])
def test_outside_is_an_index_error(wanted: list[int]) -> None:
    manifest, store = token_run()
    with pytest.raises(IndexError):
        open_dataset(manifest, store.read).batch(np.array(wanted, dtype=np.int64))


def test_shards_are_read_when_needed_and_kept_within_bounds() -> None:
    manifest, store = token_run()
    reads: list[BlobId] = []

    def read(blob: BlobId) -> bytes:
        reads.append(blob)
        return store.read(blob)

    dataset = open_dataset(manifest, read)
    assert reads == []
    for _ in range(3):
        dataset.batch(np.array([0, 1]))
    assert reads == [manifest.train[0].blob]

    reads.clear()
    small = open_dataset(manifest, read, cache_bytes=1)
    for wanted in (0, 8, 0):
        small.batch(np.array([wanted]))
    assert reads == [manifest.train[number].blob for number in (0, 2, 0)]


@pytest.mark.parametrize(
    "tokens",
    [np.arange(12, dtype=np.uint8), np.arange(13, dtype=np.uint16), np.full(13, 200, dtype=np.uint8)],
    ids=["too short", "another type", "outside the vocabulary"],
)
def test_a_shard_that_is_not_what_the_manifest_says(tokens: np.ndarray) -> None:
    manifest, store = token_run()
    bad = Shard(store.put(encode_arrays({"tokens": tokens})), 3)
    manifest = msgspec.structs.replace(manifest, train=(bad,), vocab_size=100)
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        open_dataset(manifest, store.read).batch(np.array([0]))


def test_images_have_no_tokeniser() -> None:
    manifest = Manifest(kind="arrays", dtype="uint8", train=(), validation=(), sample_shape=(2,), classes=2)
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        open_dataset(manifest, MemoryBlobs().read).tokeniser()


def test_the_manifest_travels() -> None:
    manifest, _ = token_run()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=Manifest) == manifest
