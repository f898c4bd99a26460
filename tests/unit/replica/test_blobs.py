import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.replica.blobs import (
    CHUNK_BYTES,
    PRUNE_AFTER_ROUNDS,
    PRUNE_ARRIVALS_AFTER_ROUNDS,
    BlobStore,
    ChunkList,
    chunk_list,
    is_blob_id,
    read_chunk_list,
)
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.simulated.disk import SimDisk

DATA = random.Random(1).randbytes(2 * CHUNK_BYTES + 100)
CHUNKS = chunk_list(DATA)
BLOB = CHUNKS.blob


def _chunk(index: int) -> bytes:
    return DATA[slice(*CHUNKS.span(index))]


def _store(disk: SimDisk | None = None, reached: Callable[[str], None] = lambda _: None) -> BlobStore:
    return BlobStore(disk or SimDisk(), reached)


def test_an_id_is_the_root_over_size_and_chunks() -> None:
    assert is_blob_id(BLOB) and len(CHUNKS.hashes) == 3 and CHUNKS.size_bytes == len(DATA)
    assert [CHUNKS.span(i) for i in range(3)] == [
        (0, CHUNK_BYTES),
        (CHUNK_BYTES, 2 * CHUNK_BYTES),
        (2 * CHUNK_BYTES, len(DATA)),
    ]
    assert chunk_list(DATA + b"\0").blob != BLOB and chunk_list(b"").blob != chunk_list(b"\0").blob
    for text in ("", "x" * 64, BLOB.upper(), BLOB + "0", BLOB + "\n", "../" + BLOB[3:]):
        assert not is_blob_id(text)


def test_a_chunk_list_proves_itself() -> None:
    raw = CHUNKS.encode()
    assert read_chunk_list(raw, BLOB) == CHUNKS
    for bad in (b"", raw[:-1], raw[:-32], raw + bytes(32), b"\1" + raw[1:], raw[:8] + raw[40:] + raw[8:40]):
        assert read_chunk_list(bad, BLOB) is None
    lying = ChunkList(10**12, CHUNKS.hashes)
    assert read_chunk_list(lying.encode(), lying.blob) is None, "more bytes than its chunks can hold"


def test_put_and_get() -> None:
    store = _store()
    assert store.put(DATA) == BLOB == store.put(memoryview(DATA))
    assert store.has(BLOB) and store.size(BLOB) == len(DATA) and store.get(BLOB) == DATA
    assert store.read(BLOB, 5, 9) == DATA[5:9] and store.chunks(BLOB) == CHUNKS
    assert store.used_bytes() == len(DATA)


def test_what_is_not_here() -> None:
    store = _store()
    assert not store.has(BLOB) and store.size(BLOB) is None
    assert store.read(BLOB, 0, 1) is None and store.chunks(BLOB) is None
    assert not store.finish(BLOB) and not store.add(BLOB, 0, _chunk(0))
    with pytest.raises(FileNotFoundError):
        store.get(BLOB)


@pytest.mark.parametrize("name", ["../x", "", "x" * 64, BLOB.upper(), f"{BLOB}.part"])
def test_an_id_that_is_none_is_harmless(name: str) -> None:
    disk = SimDisk()
    for path in ("x", f"blobs/{name}"):
        disk.write(path, b"a secret")
    store, blob = _store(disk), BlobId(name)
    assert not store.has(blob) and store.size(blob) is None and store.chunks(blob) is None
    assert store.read(blob, 0, 3) is None and store.damaged([blob]) == []
    assert not store.add(blob, 0, b"") and not store.finish(blob)
    store.abandon(blob)
    with pytest.raises(FileNotFoundError):
        store.get(blob)
    assert disk.read("x") == b"a secret"


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (-4, -1), (9, 5), (0, -1)])
def test_what_is_no_range_is_not_read(start: int, stop: int) -> None:
    store = _store()
    store.put(DATA)
    assert store.read(BLOB, start, stop) is None
    assert store.read(BLOB, 5, 5) == b"" and store.read(BLOB, len(DATA) - 1, 1 << 40) == DATA[-1:]


def test_chunks_arrive_in_any_order_and_wrong_ones_change_nothing() -> None:
    store = _store()
    assert store.begin(CHUNKS) == (0, 1, 2)
    assert store.add(BLOB, 2, _chunk(2))
    assert not store.add(BLOB, 0, _chunk(1)) and not store.add(BLOB, 1, b"") and not store.finish(BLOB)
    assert store.begin(CHUNKS) == (0, 1) and not store.has(BLOB)
    assert store.add(BLOB, 0, _chunk(0)) and store.add(BLOB, 0, _chunk(0)) and store.add(BLOB, 1, _chunk(1))
    assert store.finish(BLOB) and store.finish(BLOB)
    assert store.get(BLOB) == DATA and store.begin(CHUNKS) == () and store.chunks(BLOB) == CHUNKS


def test_only_what_is_wanted_takes_room_before_it_comes(tmp_path: Path) -> None:
    store = BlobStore(FileDisk(tmp_path), lambda _: None)
    part = tmp_path / "blobs" / f"{BLOB}.part"
    store.make_room(BLOB)
    store.begin(CHUNKS)
    assert not part.exists()
    store.make_room(BLOB)
    assert part.stat().st_size == 0 and store.used_bytes() == 0
    for index in (2, 0, 1):
        assert store.add(BLOB, index, _chunk(index))
    store.make_room(BLOB)
    assert store.finish(BLOB) and store.get(BLOB) == DATA
    store.make_room(BLOB)
    assert not part.exists()


@pytest.mark.parametrize("index", [3, 99, -1])
def test_a_chunk_that_the_list_does_not_have_is_refused(index: int) -> None:
    store = _store()
    store.begin(CHUNKS)
    assert not store.add(BLOB, index, _chunk(0))


def test_a_broken_off_arrival_goes_on_in_another_process() -> None:
    disk = SimDisk()
    store = _store(disk)
    store.begin(CHUNKS)
    store.add(BLOB, 1, _chunk(1))
    again = _store(disk)
    assert again.begin(CHUNKS) == (0, 2)
    assert again.add(BLOB, 0, _chunk(0)) and again.add(BLOB, 2, _chunk(2)) and again.finish(BLOB)
    assert again.get(BLOB) == DATA


def test_a_blob_made_here_while_it_arrives_is_not_spoilt_by_the_rest() -> None:
    """A snapshot is fetched from a peer, and folded here before all of it came."""
    store = _store()
    store.begin(CHUNKS)
    assert store.add(BLOB, 0, _chunk(0))
    store.put(DATA)
    assert store.finish(BLOB), "it is here, whoever brought it"
    for index in (1, 2):
        assert store.add(BLOB, index, _chunk(index))
    assert store.finish(BLOB) and store.get(BLOB) == DATA
    assert store.used_bytes() == len(DATA)


def test_the_rest_may_also_come_first() -> None:
    store = _store()
    store.begin(CHUNKS)
    store.add(BLOB, 0, _chunk(0))
    store.put(DATA)
    for index in (1, 2):
        store.add(BLOB, index, _chunk(index))
    assert store.finish(BLOB) and store.get(BLOB) == DATA


def test_the_empty_blob_arrives_too() -> None:
    store, nothing = _store(), chunk_list(b"")
    assert store.begin(nothing) == ()
    assert store.finish(nothing.blob) and store.get(nothing.blob) == b""


def test_rot_is_found_and_set_aside() -> None:
    disk = SimDisk()
    store = _store(disk)
    store.put(DATA)
    disk.write_at(f"blobs/{BLOB}", 7, b"!")
    assert store.damaged([BLOB]) == [BLOB] and store.has(BLOB)
    with pytest.raises(ShoalError, match="SH-BLOB-02"):
        store.get(BLOB)
    assert not store.has(BLOB)
    assert store.put(DATA) == BLOB and store.get(BLOB) == DATA and store.damaged([BLOB]) == []


def test_a_rotten_blob_has_no_chunk_list() -> None:
    disk = SimDisk()
    _store(disk).put(DATA)
    disk.write_at(f"blobs/{BLOB}", 7, b"!")
    assert _store(disk).chunks(BLOB) is None


def test_pruning_waits_some_rounds() -> None:
    store = _store()
    kept, old = store.put(b"kept"), store.put(b"old")
    for round_number in range(PRUNE_AFTER_ROUNDS):
        assert store.prune([kept], round_number) == 0
    assert store.prune([kept], PRUNE_AFTER_ROUNDS) == 1
    assert store.has(kept) and not store.has(old) and store.chunks(old) is None


def test_a_blob_that_is_needed_again_is_waited_for_anew() -> None:
    store = _store()
    blob = store.put(b"needed now and then")
    for round_number in range(6):
        store.prune([blob] if round_number % 2 else [], round_number)
    assert store.has(blob)


def test_nothing_is_left_for_ever() -> None:
    """What was begun and never finished, or set aside as rotten, is pruned in time, or the disk fills up."""
    disk = SimDisk()
    store = _store(disk)
    store.begin(CHUNKS)
    store.add(BLOB, 0, _chunk(0))
    rotten = store.put(b"rotten")
    disk.write_at(f"blobs/{rotten}", 0, b"R")
    with pytest.raises(ShoalError):
        store.get(rotten)
    for round_number in range(20):
        store.prune([], round_number)
    assert _store(disk).used_bytes() == 0


def test_leavings_of_an_earlier_process_go_too_even_where_much_is_spared() -> None:
    disk = SimDisk()
    before = _store(disk)
    before.begin(CHUNKS)
    before.add(BLOB, 0, _chunk(0))
    disk.write(f"blobs/{'0' * 64}.rotten", b"rot")
    disk.write("blobs/notes", b"not a file of the store")
    store = _store(disk)
    for round_number in range(PRUNE_AFTER_ROUNDS + 1):
        store.prune([], round_number, spare_bytes=1 << 40)
    assert disk.list("blobs") == ["notes"]


def test_an_arrival_that_moves_or_is_held_or_wanted_stays() -> None:
    store = _store()
    store.begin(CHUNKS)
    store.add(BLOB, 0, _chunk(0))
    with store.held(BLOB):
        for round_number in range(20):
            store.prune([], round_number)
        store.abandon(BLOB)
        assert store.begin(CHUNKS) == (1, 2)
    for round_number in range(20, 40):
        store.prune([BLOB], round_number)
    for round_number in range(40, 40 + PRUNE_ARRIVALS_AFTER_ROUNDS):
        store.prune([], round_number)
    assert store.add(BLOB, 1, _chunk(1)), "one chunk may take some rounds"
    store.prune([], 50)
    assert store.begin(CHUNKS) == (2,) and store.add(BLOB, 2, _chunk(2)) and store.finish(BLOB)


def test_an_arrival_that_was_made_here_meanwhile_leaves_nothing() -> None:
    disk = SimDisk()
    store = _store(disk)
    store.put(DATA)
    disk.write(f"blobs/{BLOB}.part", b"a late chunk")
    for round_number in range(PRUNE_AFTER_ROUNDS + 1):
        store.prune([BLOB], round_number)
    assert disk.list("blobs") == [BLOB]


def test_what_is_used_is_known_without_looking() -> None:
    class CountingDisk(SimDisk):
        looks = 0

        def size(self, path: str) -> int | None:
            self.looks += 1
            return super().size(path)

    disk = CountingDisk()
    store = _store(disk)
    for number in range(50):
        store.put(b"%d" % number)
    small = store.used_bytes()
    store.begin(CHUNKS)
    disk.looks = 0
    store.add(BLOB, 2, _chunk(2))
    assert store.used_bytes() == small + 100 == small + store.arrived_bytes(BLOB), "a hole takes nothing"
    assert disk.looks < 5
    for index in (0, 1):
        store.add(BLOB, index, _chunk(index))
    store.finish(BLOB)
    assert store.used_bytes() == small + len(DATA) == _store(disk).used_bytes()
    assert store.arrived_bytes(BLOB) == 0


def test_an_abandoned_arrival_leaves_nothing() -> None:
    disk = SimDisk()
    store = _store(disk)
    store.begin(CHUNKS)
    store.add(BLOB, 0, _chunk(0))
    store.abandon(BLOB)
    assert disk.list("blobs") == [] and store.used_bytes() == 0 and not store.add(BLOB, 1, _chunk(1))
    assert store.begin(CHUNKS) == (0, 1, 2)


@pytest.mark.parametrize("point", ["blob.before-sync", "blob.after-rename"])
def test_a_crash_while_storing_leaves_a_whole_blob_or_none(point: str) -> None:
    class Died(Exception):
        pass

    def reached(name: str) -> None:
        if name == point:
            raise Died

    data = DATA[: CHUNK_BYTES + 50]
    blob = chunk_list(data).blob
    for seed in range(12):
        disk = SimDisk()
        with pytest.raises(Died):
            _store(disk, reached).put(data)
        disk.crash(random.Random(seed))
        store = _store(disk)
        assert not store.has(blob) or store.get(blob) == data
        assert store.put(data) == blob and store.get(blob) == data


def test_a_stored_blob_survives_any_crash() -> None:
    for seed in range(8):
        disk = SimDisk()
        _store(disk).put(DATA[:1000])
        disk.crash(random.Random(seed))
        assert _store(disk).get(BlobId(chunk_list(DATA[:1000]).blob)) == DATA[:1000]


@pytest.mark.parametrize("way", ["put", "chunks"])
def test_two_threads_may_bring_the_same_blob(tmp_path: Path, way: str) -> None:
    """The second comes while the first is about to give the file its name."""
    data, others = b"twice" * 1000, list[threading.Thread]()
    chunks = chunk_list(data)

    def bring() -> None:
        if way == "put":
            store.put(data)
        else:
            store.begin(chunks)
            store.add(chunks.blob, 0, data)
            store.finish(chunks.blob)

    def reached(point: str) -> None:
        if point == "blob.before-sync" and not others:
            others.append(threading.Thread(target=bring))
            others[0].start()
            others[0].join(0.2)

    store = BlobStore(FileDisk(tmp_path), reached)
    assert store.put(data) == chunks.blob
    others[0].join(60)
    assert store.get(chunks.blob) == data
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [chunks.blob]
