"""A blob in coded pieces, and small blobs that are pushed in ranges."""

from __future__ import annotations

import itertools
import random

import pytest

from shoal.base.ids import BlobId, NodeId
from shoal.replica.assembling import MOST_ASSEMBLING, WHOLE_BYTES, Assembling
from shoal.replica.pieces import cut_pieces, join_pieces

DATA = random.Random(3).randbytes(1001)
A, B = NodeId("a" * 40), NodeId("b" * 40)
BLOB = BlobId("0" * 64)


@pytest.mark.parametrize(("needed", "count"), [(1, 1), (1, 4), (3, 5), (4, 4), (7, 16)])
def test_any_so_many_pieces_give_it_back(needed: int, count: int) -> None:
    pieces = cut_pieces(DATA, needed, count)
    assert len(pieces) == count and {len(piece) for piece in pieces} == {-(-len(DATA) // needed)}
    for chosen in itertools.islice(itertools.combinations(range(count), needed), 200):
        some = {number: pieces[number] for number in chosen}
        assert join_pieces(some, needed, count, len(DATA)) == DATA


def test_too_few_or_uneven_pieces_are_refused() -> None:
    pieces = dict(enumerate(cut_pieces(DATA, 3, 5)))
    for wrong in ({0: pieces[0]}, {0: pieces[0], 1: pieces[1], 2: pieces[2][:-1]}, {}, {**pieces, -1: b""}):
        with pytest.raises(ValueError, match="pieces"):
            join_pieces(dict(list(wrong.items())[-3:]), 3, 5, len(DATA))


def test_ranges_come_together_in_any_order() -> None:
    gathered, size = Assembling(), len(DATA)
    spans = [(0, 400), (400, 800), (800, size)]
    for start, stop in (spans[2], spans[0]):
        assert gathered.take(A, BLOB, start, size, DATA[start:stop]) is None
    assert gathered.take(A, BLOB, 400, size, DATA[400:800]) == DATA


def test_nobody_can_spoil_what_another_sends() -> None:
    gathered, size = Assembling(), len(DATA)
    gathered.take(A, BLOB, 0, size, DATA[:500])
    gathered.take(B, BLOB, 500, size, bytes(size - 500))
    assert gathered.take(A, BLOB, 500, size, DATA[500:]) == DATA


@pytest.mark.parametrize(
    ("offset", "size", "body"), [(0, 0, b""), (1, 2, b"xx"), (0, WHOLE_BYTES + 1, b"x"), (0, 4, b"")]
)
def test_what_is_no_range_is_refused(offset: int, size: int, body: bytes) -> None:
    with pytest.raises(ValueError, match="no range"):
        Assembling().take(A, BLOB, offset, size, body)


def test_many_beginnings_take_no_more_than_their_bound() -> None:
    gathered = Assembling()
    for number in range(3 * MOST_ASSEMBLING):
        gathered.take(A, BlobId(f"{number:064x}"), 0, 100, b"x")
    assert len(gathered._gathered) == MOST_ASSEMBLING
