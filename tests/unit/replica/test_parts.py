"""Blobs of parts: cut where they say, checked part by part, and fetched so."""

from __future__ import annotations

import random
from typing import Any

import blake3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import BlobId
from shoal.replica.blobs import CHUNK_BYTES, BlobStore, ChunkList, chunk_list, read_chunk_list
from shoal.replica.parts import MAGIC, MAX_PARTS, join_parts, sizes_of, split_parts
from shoal.worlds.simulated.disk import SimDisk

from .test_swarm import Hosts, Liar

PAYLOADS = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=9)
BIG = [random.Random(n).randbytes(size) for n, size in enumerate((50, 2 * CHUNK_BYTES + 3, CHUNK_BYTES, 7))]


def _store() -> BlobStore:
    return BlobStore(SimDisk(), lambda point: None)


@settings(deadline=None, max_examples=60)
@given(payloads=PAYLOADS)
def test_parts_come_back_as_they_were(payloads: list[bytes]) -> None:
    blob = join_parts(payloads)
    assert split_parts(blob, len(payloads)) == payloads
    assert split_parts(blob, len(payloads) + 1) is None
    sizes = sizes_of(blob, len(blob))
    assert sizes[1:] == tuple(map(len, payloads)) and sum(sizes) == len(blob)


@settings(deadline=None, max_examples=60)
@given(payloads=PAYLOADS, cut=st.integers(1, 300), noise=st.binary(max_size=40))
def test_what_does_not_fit_exactly_has_no_parts(payloads: list[bytes], cut: int, noise: bytes) -> None:
    blob = join_parts(payloads)
    for bent in (blob[:-cut], blob + b"\0", noise, MAGIC + noise, b""):
        if bent != blob:
            assert split_parts(bent, len(payloads)) is None
        listed = chunk_list(bent)
        assert read_chunk_list(listed.encode(), listed.blob) == listed


def test_too_many_parts_and_empty_ones_are_none() -> None:
    assert sizes_of(join_parts([b"a"] * MAX_PARTS), 10**9) == ()
    many = join_parts([b"a"] * (MAX_PARTS + 1))
    empty = join_parts([b"a", b"", b"b"])
    assert sizes_of(many, len(many)) == () and sizes_of(empty, len(empty)) == ()


def test_every_part_begins_a_chunk() -> None:
    blob = join_parts(BIG)
    listed = chunk_list(blob)
    for number, payload in enumerate(BIG):
        spans = [listed.span(index) for index in listed.chunks_of(number + 1)]
        assert b"".join(blob[start:stop] for start, stop in spans) == payload
    spans = [listed.span(index) for index in range(len(listed.hashes))]
    assert b"".join(blob[start:stop] for start, stop in spans) == blob


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_bent_list_of_parts_is_nobodys(position: int, bit: int) -> None:
    listed = chunk_list(join_parts([b"one", b"two", b"three"]))
    encoded = bytearray(listed.encode())
    encoded[position % len(encoded)] ^= 1 << bit
    assert read_chunk_list(bytes(encoded), listed.blob) is None
    assert read_chunk_list(listed.encode()[: position % len(encoded)], listed.blob) is None


def test_a_blob_arrives_chunk_by_chunk_and_is_read_back() -> None:
    blob, store = join_parts(BIG), _store()
    listed = chunk_list(blob)
    for index in reversed(store.begin(listed)):
        assert not store.finish(listed.blob)
        assert store.add(listed.blob, index, blob[slice(*listed.span(index))])
    assert store.finish(listed.blob) and store.get(listed.blob) == blob
    assert store.put(blob) == listed.blob


def _other_cut(data: bytes, parts: tuple[int, ...]) -> ChunkList:
    """A list that says of some bytes that they have other parts than they have; its id is as good as any."""
    empty = ChunkList(len(data), (), parts)
    chunks = [index for part in range(len(parts)) for index in empty.chunks_of(part)] if parts else [0]
    hashes = tuple(blake3.blake3(data[slice(*empty.span(index))]).digest() for index in chunks)
    return ChunkList(len(data), hashes, parts)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"just some bytes", (5, 10)),
        (join_parts([b"one", b"two"]), ()),
        (join_parts([b"one", b"two"]), (20, 20)),
    ],
)
def test_an_arrival_that_has_other_parts_than_its_list_says_goes(data: bytes, parts: tuple[int, ...]) -> None:
    """Kept, it could never be read: its id is not that of its bytes."""
    if parts:
        parts = (*parts[:-1], len(data) - sum(parts[:-1]))
    false, store = _other_cut(data, parts), _store()
    assert read_chunk_list(false.encode(), false.blob) == false, "it proves itself"
    for index in store.begin(false):
        assert store.add(false.blob, index, data[slice(*false.span(index))])
    assert not store.finish(false.blob) and not store.has(false.blob) and store.used_bytes() == 0


# --- fetching some ----------------------------------------------------------------------------------------

Wanted = tuple[BlobId, int, dict[int, int], list[int]]


def _fetch(hosts: Hosts, *wanted: Wanted) -> list[Any]:
    async def job() -> list[Any]:
        return [
            await hosts.swarm.fetch_parts(blob, count, parts, hosts.peers(*which))
            for blob, count, parts, which in wanted
        ]

    return hosts.loop.run(job())


def test_parts_are_fetched_alone_and_not_stored() -> None:
    hosts = Hosts(3)
    blob = hosts.stores[1].put(join_parts(BIG))
    assert _fetch(hosts, (blob, 4, {3: 100, 0: 100}, [1])) == [[BIG[3], BIG[0]]]
    assert hosts.network.sent_bytes < 2000, "not the large ones between them"
    assert not hosts.stores[0].has(blob)


def test_what_is_here_is_not_fetched() -> None:
    hosts = Hosts(2)
    blob = hosts.stores[0].put(join_parts(BIG))
    assert _fetch(hosts, (blob, 4, {1: 10**7}, [1])) == [[BIG[1]]]
    assert hosts.network.sent_bytes == 0


def test_a_liars_bytes_are_not_taken() -> None:
    hosts = Hosts(4)
    blob = {store.put(join_parts(BIG)) for store in hosts.stores[1:]}.pop()
    hosts.hosts[1].resources = Liar(hosts.offered[1])
    hosts.hosts[3].resources = Liar(hosts.offered[3], list_too=True)
    parts = {0: 100, 1: 10**7}
    assert _fetch(hosts, (blob, 4, parts, [1, 3, 2]), (blob, 4, parts, [1, 3])) == [BIG[:2], None]


def test_none_for_what_there_is_not() -> None:
    """Everybody finds alike that an update has no such part; that it cannot be had now is another thing."""
    hosts = Hosts(2)
    blob, other = hosts.stores[1].put(join_parts(BIG)), hosts.stores[1].put(b"not of parts")
    assert _fetch(
        hosts,
        (blob, 4, {0: 100, 1: 100}, [1]),
        (blob, 5, {0: 100}, [1]),
        (other, 4, {0: 100, 2: 10}, [1]),
        (BlobId("not a name"), 4, {0: 100}, [1]),
        (chunk_list(b"nowhere").blob, 4, {0: 100}, [1]),
    ) == [[BIG[0], None], [None], [None, None], [None], None], "the second part of the first is too long"
