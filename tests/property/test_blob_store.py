"""BlobStore against a model: puts, arrivals in pieces, wrong chunks, pruning, and power cuts anywhere."""

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.replica.blobs import CHUNK_BYTES, PRUNE_AFTER_ROUNDS, BlobStore, chunk_list
from shoal.worlds.simulated.disk import SimDisk

from .modest import many, modest

BLOBS = [
    b"",
    b"tiny",
    random.Random(1).randbytes(CHUNK_BYTES),
    random.Random(2).randbytes(CHUNK_BYTES + 1),
    random.Random(3).randbytes(2 * CHUNK_BYTES + 9),
]
LISTS = [chunk_list(data) for data in BLOBS]
WHICH = st.integers(0, len(BLOBS) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "begin", "finish", "get"]), WHICH, st.just(0)),
        st.tuples(st.sampled_from(["add", "add", "wrong"]), WHICH, st.integers(0, 2)),
        st.tuples(st.just("prune"), WHICH, st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 2**32), st.just(0)),
        st.tuples(st.just("die at"), st.integers(1, 3), st.integers(0, 2**32)),
    ),
    max_size=20,
)


class Died(BaseException):
    pass


class Lifetimes:
    def __init__(self) -> None:
        self.disk = SimDisk()
        self.stored: set[int] = set()
        self.round = 0
        self.dies_in, self.crash_seed = 0, 0
        self.store = BlobStore(self.disk, self._reached)

    def _reached(self, point: str) -> None:
        self.dies_in -= 1
        if self.dies_in == 0:
            raise Died

    def crash(self, seed: int) -> None:
        self.disk.crash(random.Random(seed))
        self.store = BlobStore(self.disk, self._reached)

    def step(self, kind: str, which: int, detail: int) -> None:
        try:
            self._step(kind, which, detail)
        except Died:
            self.crash(self.crash_seed)
            if self.store.has(LISTS[which].blob):
                self.stored.add(which)

    def _step(self, kind: str, which: int, detail: int) -> None:
        match kind:
            case "crash":
                self.crash(which)
            case "die at":
                self.dies_in, self.crash_seed = which, detail
            case "put":
                assert self.store.put(BLOBS[which]) == LISTS[which].blob
                self.stored.add(which)
            case "begin":
                missing = self.store.begin(LISTS[which])
                assert not missing or which not in self.stored
            case "add":
                index = detail % max(1, len(LISTS[which].hashes))
                self.store.add(LISTS[which].blob, index, BLOBS[which][slice(*LISTS[which].span(index))])
            case "wrong":
                expected = which in self.stored
                taken = self.store.add(LISTS[which].blob, detail, b"not this chunk")
                assert not taken or expected or detail not in self.store.begin(LISTS[which])
            case "finish":
                if self.store.finish(LISTS[which].blob):
                    self.stored.add(which)
                else:
                    assert which not in self.stored
            case "prune":
                for _ in range(PRUNE_AFTER_ROUNDS + 1):
                    self.store.prune([LISTS[which].blob], self.round)
                    self.round += 1
                self.stored &= {which}

    def check(self) -> None:
        for number, (data, chunks) in enumerate(zip(BLOBS, LISTS, strict=True)):
            if number in self.stored:
                assert self.store.get(chunks.blob) == data and self.store.chunks(chunks.blob) == chunks
            elif self.store.has(chunks.blob):
                # A removal that was not synced may be undone by a crash; then the blob is whole.
                assert self.store.get(chunks.blob) == data
        assert self.store.damaged([chunks.blob for chunks in LISTS]) == []


@many
@given(STEPS)
def test_a_stored_blob_is_whole_and_stays(steps: list[tuple[str, int, int]]) -> None:
    life = Lifetimes()
    for kind, which, detail in steps:
        life.step(kind, which, detail)
    life.check()


@modest
@given(WHICH, st.integers(0, 2**32), st.data())
def test_an_arrival_goes_on_after_any_crash(which: int, seed: int, data: st.DataObject) -> None:
    life, chunks = Lifetimes(), LISTS[which]
    life.store.begin(chunks)
    for index in data.draw(st.permutations(range(len(chunks.hashes))))[:2]:
        assert life.store.add(chunks.blob, index, BLOBS[which][slice(*chunks.span(index))])
    life.crash(seed)
    for index in life.store.begin(chunks):
        assert life.store.add(chunks.blob, index, BLOBS[which][slice(*chunks.span(index))])
    assert life.store.finish(chunks.blob) and life.store.get(chunks.blob) == BLOBS[which]
