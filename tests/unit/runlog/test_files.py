import random

import pytest

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.runlog.files import FileLogStore
from shoal.worlds.simulated.disk import SimDisk

RUN, OTHER = RunId("a" * 32), RunId("b" * 32)
PATH = f"logs/{RUN}.log"
ENTRIES = [b"genesis" * 9, b"", b"plan" * 30, b"seal" * 50, b"x"]


def _store(disk: SimDisk) -> FileLogStore:
    return FileLogStore(disk, lambda point: None)


def _written(disk: SimDisk) -> SimDisk:
    store = _store(disk)
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
    return disk


def _offsets() -> list[int]:
    ends = [0]
    for entry in ENTRIES:
        ends.append(ends[-1] + 12 + len(entry))
    return ends


class FullDisk(SimDisk):
    """Takes only `room` more bytes, then fails like a full disk, having written what fitted."""

    room: int | None = None

    def append(self, path: str, data: bytes) -> None:
        self._limited(len(data), lambda n: super(FullDisk, self).append(path, data[:n]))

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        self._limited(len(data), lambda n: super(FullDisk, self).write_at(path, offset, data[:n]))

    def _limited(self, size: int, write) -> None:  # type: ignore[no-untyped-def]
        fits = size if self.room is None else min(size, self.room)
        write(fits)
        if fits < size:
            raise ShoalError("SH-DISK-01", "the disk is full", "make room")


def test_entries_come_back_in_another_process() -> None:
    disk = _written(SimDisk())
    store = _store(disk)
    assert list(store.read(RUN)) == ENTRIES and store.length(RUN) == len(ENTRIES)
    assert list(store.read(RUN, 1, 3)) == ENTRIES[1:3]
    assert list(store.read(RUN, 4, 99)) == ENTRIES[4:] and list(store.read(RUN, 9)) == []
    assert store.runs() == [RUN] and store.length(OTHER) == 0 and list(store.read(OTHER)) == []


def test_a_position_before_the_log_reads_nothing_wrong() -> None:
    """A peer's word may lead here: a negative start must not wrap round to the log's end."""
    store = _store(_written(SimDisk()))
    assert list(store.read(RUN, -3)) in ([], ENTRIES)
    assert list(store.read(RUN, -1000, 2)) in ([], ENTRIES[:2])


@pytest.mark.parametrize("position", [0, 4, 6, -1])
def test_only_the_next_position_is_taken(position: int) -> None:
    store = _store(_written(SimDisk()))
    with pytest.raises(ShoalError, match="SH-LOG-03"):
        store.append(RUN, position, b"late")
    assert list(store.read(RUN)) == ENTRIES


def test_a_torn_tail_is_cut_wherever_it_tore() -> None:
    start, end = _offsets()[-3:-1]
    whole = _written(SimDisk()).read(PATH)
    for cut in range(start, end):
        disk = SimDisk()
        disk.write(PATH, whole[:cut])
        store = _store(disk)
        assert list(store.read(RUN)) == ENTRIES[:3], f"cut at {cut}"
        store.append(RUN, 3, b"anew")
        assert list(_store(disk).read(RUN)) == [*ENTRIES[:3], b"anew"]


def test_a_damaged_last_record_is_cut() -> None:
    disk = _written(SimDisk())
    whole = bytearray(disk.read(PATH))
    whole[-1] ^= 1
    disk.write(PATH, bytes(whole))
    assert list(_store(disk).read(RUN)) == ENTRIES[:-1]


@pytest.mark.parametrize("byte", range(_offsets()[-2]))
def test_damage_before_the_last_record_is_reported_and_nothing_is_cut(byte: int) -> None:
    disk = _written(SimDisk())
    whole = bytearray(disk.read(PATH))
    whole[byte] ^= 0x10
    disk.write(PATH, bytes(whole))
    with pytest.raises(ShoalError, match="SH-LOG-01"):
        _store(disk).length(RUN)
    assert disk.read(PATH) == bytes(whole)


def test_two_damaged_records_are_reported() -> None:
    disk = _written(SimDisk())
    whole = bytearray(disk.read(PATH))
    offsets = _offsets()
    whole[offsets[2] + 13] ^= 1
    whole[offsets[3] + 13] ^= 1
    disk.write(PATH, bytes(whole))
    with pytest.raises(ShoalError, match="SH-LOG-01"):
        _store(disk).length(RUN)


def test_a_damaged_log_can_be_set_aside() -> None:
    disk = _written(SimDisk())
    disk.write_at(PATH, 14, b"!")
    store = _store(disk)
    with pytest.raises(ShoalError, match="SH-LOG-01"):
        store.length(RUN)
    store.set_aside(RUN)
    assert store.length(RUN) == 0 and store.runs() == []
    store.append(RUN, 0, b"fetched anew")
    assert list(_store(disk).read(RUN)) == [b"fetched anew"]
    store.set_aside(OTHER)


@pytest.mark.parametrize("room", [0, 1, 11, 12, 13, 40])
def test_a_full_disk_loses_nothing_and_the_log_goes_on_when_there_is_room(room: int) -> None:
    disk = FullDisk()
    _written(disk)
    store = _store(disk)
    disk.room = room
    with pytest.raises(ShoalError, match="SH-DISK-01"):
        store.append(RUN, 5, b"big" * 50)
    disk.room = None
    store.append(RUN, 5, b"now it fits")
    store.append(RUN, 6, b"and more")
    assert list(_store(disk).read(RUN)) == [*ENTRIES, b"now it fits", b"and more"]


def test_kept_values() -> None:
    disk = SimDisk()
    store = _store(disk)
    store.keep(RUN, "claim.b", b"2")
    store.keep(RUN, "claim.a", b"1")
    store.keep(RUN, "token.0", b"t")
    store.keep(OTHER, "claim.a", b"other")
    store.keep(RUN, "claim.a", b"11")
    store.drop(RUN, "claim.zzz")
    again = _store(disk)
    assert list(again.kept(RUN, "claim.").items()) == [("claim.a", b"11"), ("claim.b", b"2")]
    again.drop(RUN, "claim.a")
    assert again.kept(RUN, "") == {"claim.b": b"2", "token.0": b"t"}


def test_what_was_kept_or_dropped_survives_any_crash() -> None:
    for seed in range(30):
        disk = SimDisk()
        store = _store(disk)
        store.keep(RUN, "claim.a", b"1")
        store.keep(RUN, "claim.b", b"2")
        store.drop(RUN, "claim.a")
        disk.crash(random.Random(seed))
        assert _store(disk).kept(RUN, "claim.") == {"claim.b": b"2"}
