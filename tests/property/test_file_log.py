"""FileLogStore against a model, with power cuts anywhere."""

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.runlog.files import FileLogStore
from shoal.worlds.simulated.disk import SimDisk

from .modest import many, modest

RUNS = (RunId("a" * 32), RunId("b" * 32))
KEYS = ("claim.a", "claim.b", "token.0")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(RUNS), st.binary(max_size=40)),
        st.tuples(st.just("keep"), st.sampled_from(KEYS), st.binary(max_size=20)),
        st.tuples(st.just("drop"), st.sampled_from(KEYS), st.just(b"")),
        st.tuples(st.just("crash"), st.just(""), st.integers(0, 2**32).map(lambda n: n.to_bytes(5))),
        st.tuples(st.just("die at"), st.integers(1, 4), st.integers(0, 2**32).map(lambda n: n.to_bytes(5))),
    ),
    max_size=25,
)


class Died(BaseException):
    pass


class Lifetimes:
    """A store that is opened again after every crash, beside what it must hold."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.logs: dict[RunId, list[bytes]] = {run: [] for run in RUNS}
        self.kept: dict[str, bytes] = {}
        self.dies_in: int | None = None
        self.crash_seed = 0
        self._open()

    def _open(self) -> None:
        self.store = FileLogStore(self.disk, self._reached)

    def _reached(self, point: str) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in == 0:
                self.dies_in = None
                raise Died

    def crash(self, seed: int) -> None:
        self.disk.crash(random.Random(seed))
        self._open()

    def check(self) -> None:
        for run, entries in self.logs.items():
            assert list(self.store.read(run)) == entries and self.store.length(run) == len(entries)
        assert self.store.kept(RUNS[0], "") == dict(sorted(self.kept.items()))
        assert self.store.runs() == [run for run in RUNS if self.logs[run]]

    def append(self, run: RunId, entry: bytes) -> None:
        log = self.logs[run]
        try:
            self.store.append(run, len(log), entry)
            log.append(entry)
        except Died:
            self.crash(self.crash_seed)
            # Nobody was told: the entry may be there or not, but nothing else may have changed.
            found = list(self.store.read(run))
            assert found in (log, [*log, entry])
            self.logs[run] = found

    def keep(self, key: str, value: bytes) -> None:
        try:
            self.store.keep(RUNS[0], key, value)
            self.kept[key] = value
        except Died:
            self.crash(self.crash_seed)
            found = self.store.kept(RUNS[0], key).get(key)
            assert found in (self.kept.get(key), value)
            if found is not None:
                self.kept[key] = found


@many
@given(STEPS)
def test_what_was_promised_is_there(steps: list[tuple[str, object, bytes]]) -> None:
    life = Lifetimes()
    for kind, what, value in steps:
        match kind:
            case "append":
                life.append(what, value)  # type: ignore[arg-type]
            case "keep":
                life.keep(what, value)  # type: ignore[arg-type]
            case "drop":
                life.store.drop(RUNS[0], what)  # type: ignore[arg-type]
                life.kept.pop(what, None)  # type: ignore[call-overload]
            case "crash":
                life.crash(int.from_bytes(value))
            case "die at":
                life.dies_in, life.crash_seed = what, int.from_bytes(value)  # type: ignore[assignment]
        life.check()


@modest
@given(st.lists(st.binary(max_size=30), min_size=2, max_size=6), st.data())
def test_any_damage_before_the_last_record_is_reported(entries: list[bytes], data: st.DataObject) -> None:
    disk = SimDisk()
    store = FileLogStore(disk, lambda _: None)
    for position, entry in enumerate(entries):
        store.append(RUNS[0], position, entry)
    path = f"logs/{RUNS[0]}.log"
    whole = bytearray(disk.read(path))
    last = len(whole) - 12 - len(entries[-1])
    at = data.draw(st.integers(0, last - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    disk.write(path, bytes(whole))
    try:
        FileLogStore(disk, lambda _: None).length(RUNS[0])
    except ShoalError as error:
        assert error.code == "SH-LOG-01" and disk.read(path) == bytes(whole)
    else:
        raise AssertionError(f"damage at {at} was not noticed")


@modest
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5), st.integers(0, 60), st.binary(max_size=5))
def test_a_torn_tail_costs_the_last_record_at_most(entries: list[bytes], cut: int, junk: bytes) -> None:
    disk = SimDisk()
    store = FileLogStore(disk, lambda _: None)
    for position, entry in enumerate(entries):
        store.append(RUNS[0], position, entry)
    path = f"logs/{RUNS[0]}.log"
    whole = disk.read(path)
    cut = min(cut, 12 + len(entries[-1]))
    disk.write(path, whole[: len(whole) - cut] + (junk if cut else b""))
    found = list(FileLogStore(disk, lambda _: None).read(RUNS[0]))
    assert found in (entries[:-1], entries) and (cut > 0 or found == entries)
