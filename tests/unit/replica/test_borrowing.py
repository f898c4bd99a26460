"""An arriving blob takes over the chunks that an older version of it has."""

from __future__ import annotations

import os

from shoal.replica.blobs import CHUNK_BYTES, BlobStore, chunk_list
from shoal.worlds.simulated.disk import SimDisk


def store() -> tuple[BlobStore, SimDisk]:
    disk = SimDisk()
    return BlobStore(disk, lambda point: None), disk


def test_only_what_changed_is_missing() -> None:
    old = os.urandom(5 * CHUNK_BYTES + 100)
    new = bytearray(old)
    new[3 * CHUNK_BYTES + 7] ^= 1
    blobs, disk = store()
    before = blobs.put(old)
    again = BlobStore(disk, lambda point: None)  # After a restart, nothing is remembered.
    chunks = chunk_list(bytes(new))
    assert again.begin(chunks) == (3,)
    assert again.arrived_bytes(chunks.blob) == len(new) - CHUNK_BYTES
    assert again.add(chunks.blob, 3, bytes(new[3 * CHUNK_BYTES : 4 * CHUNK_BYTES]))
    assert again.finish(chunks.blob) and again.get(chunks.blob) == bytes(new) and again.get(before) == old


def test_rotten_chunks_are_not_taken_over() -> None:
    old = os.urandom(3 * CHUNK_BYTES)
    new = bytearray(old)
    new[0] ^= 1
    blobs, disk = store()
    before = blobs.put(old)
    disk.write_at(f"blobs/{before}", CHUNK_BYTES + 5, b"rot")
    assert blobs.begin(chunk_list(bytes(new))) == (0, 1)


def test_others_are_left_alone() -> None:
    blobs, _ = store()
    blobs.put(os.urandom(2 * CHUNK_BYTES))
    assert blobs.begin(chunk_list(os.urandom(4 * CHUNK_BYTES))) == (0, 1, 2, 3)
