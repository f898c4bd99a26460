"""Chunks are shared between versions, and come back to the same bytes or are named as damaged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.base.layout import make_layout
from shoal.checkpoint.archive import CHUNKS, PINS, ChunkArchive, cuts_of
from shoal.checkpoint.keeping import retain
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.state import State, encode_state, initial_state
from shoal.strategy.recipe import Retention
from shoal.worlds.simulated.disk import SimDisk

LAYOUT = make_layout([("frozen", (300, 1024)), ("moving", (100, 1024)), ("bias", (7,)), ("scale", (9,))], 2)


def snapshot(moving: float, steps: tuple[int, ...] = ()) -> bytes:
    generator = torch.Generator().manual_seed(1)
    state = initial_state(LAYOUT, torch.randn(LAYOUT.numel, generator=generator), ("momentum",))
    state.params[300 * 1024 :] += moving
    return encode_state(State(LAYOUT, state.params, state.slots, steps))


def test_unchanged_tensors_are_stored_once() -> None:
    archive = ChunkArchive(SimDisk())
    first, second = snapshot(0.0), snapshot(1.0, (5000, 70000))
    begun = archive.add(chunk_list(first).blob, first, LAYOUT)
    assert begun.new_bytes == begun.size_bytes == len(first)
    added = archive.add(chunk_list(second).blob, second, LAYOUT)
    assert added.new_bytes <= 4 * 100 * 1024 + 200, "only what moved, and the header"
    for data in (first, second):
        assert archive.get(chunk_list(data).blob) == data
    assert archive.used_bytes() == begun.new_bytes + added.new_bytes


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 2))
def test_cuts_cover_a_snapshot_exactly_once(sizes: list[int], fragments: int, slots: int) -> None:
    layout = make_layout([(f"t{i}", (size,)) for i, size in enumerate(sizes)], fragments)
    data = encode_state(initial_state(layout, torch.zeros(layout.numel), tuple("ab"[:slots])))
    cuts = list(cuts_of(data, layout))
    assert b"".join(data[start:stop] for start, stop in cuts) == data
    assert all(start < stop for start, stop in cuts)


def test_chunks_go_with_the_last_state_that_names_them() -> None:
    disk = SimDisk()
    archive = ChunkArchive(disk)
    states = [snapshot(float(number)) for number in range(3)]
    blobs = [chunk_list(data).blob for data in states]
    for blob, data in zip(blobs, states, strict=True):
        archive.add(blob, data, LAYOUT)
    archive.keep_only(blobs[1:2])
    assert archive.get(blobs[1]) == states[1] and not archive.has(blobs[0])
    archive.keep_only([])
    assert disk.list(CHUNKS) == [] and archive.used_bytes() == 0


def test_a_flipped_byte_in_a_chunk_is_named() -> None:
    disk = SimDisk()
    archive = ChunkArchive(disk)
    data = snapshot(0.0)
    blob = chunk_list(data).blob
    archive.add(blob, data, LAYOUT)
    assert list(archive.damaged()) == []
    name = disk.list(CHUNKS)[1]
    disk.write_at(f"{CHUNKS}/{name}", 3, b"!!")
    assert f"{CHUNKS}/{name}" in list(archive.damaged())
    with pytest.raises(ShoalError, match="SH-BLOB-02"):
        archive.get(blob)


def test_what_rules_and_pins_keep_outlives_its_blob() -> None:
    from checkpoint.test_retaining import story

    disk = SimDisk()
    blobs = BlobStore(disk, lambda point: None)
    clerk, states = story(blobs, 6)
    view = clerk.view
    disk.write(f"{PINS}/{chunk_list(states[1]).blob}", b"")
    retain(view, blobs, Retention(last=2, every=3))
    for round_number in (0, 10):
        blobs.prune({saved.blob for saved in view.kept_states()}, round_number)
    archive = ChunkArchive(disk)
    kept = [number for number, data in enumerate(states) if archive.has(chunk_list(data).blob)]
    assert kept == [0, 1, 3], "every third and the pinned one; the last two are blobs still"
    assert [n for n, data in enumerate(states) if blobs.has(chunk_list(data).blob)] == [5, 6]
    assert archive.get(chunk_list(states[3]).blob) == states[3]
