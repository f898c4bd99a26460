"""What a claim may say of coded pieces, and when an update in pieces counts as held."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.base.ids import BlobId
from shoal.coordinator.claims import Demand
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Claim, Receipt
from shoal.runlog.pieces import are_sound, held_pieces, lacking, piece_bytes
from shoal.runlog.statements import open_claim, read_receipts
from shoal.runlog.view import RunView
from shoal.wire.identity import Identity
from shoal.wire.signed import sign

from .small_log import COORDINATOR, NODES, Clerk, make_claim

A, B, C = NODES[:3]
PIECES = tuple(BlobId(f"{number}" * 64) for number in (1, 2, 3))


def planned() -> RunView:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    return clerk.view


def cut(view: RunView, **changes: Any) -> Claim:
    claim = make_claim(view, A)
    return msgspec.structs.replace(claim, **{"pieces": PIECES, "pieces_needed": 2, **changes})


def receipt(holder: Identity, claim: Claim, blob: BlobId, size_bytes: int | None = None) -> Any:
    size = piece_bytes(claim) if size_bytes is None else size_bytes
    return sign(holder, Receipt(run=claim.run, holder=holder.node, blob=blob, size_bytes=size))


@pytest.mark.parametrize(
    "changes",
    [
        {"pieces_needed": 0},
        {"pieces_needed": 4},
        {"pieces_needed": -1},
        {"pieces": (PIECES[0], PIECES[0])},
        {"pieces": ()},
        {"pieces": tuple(BlobId(f"{n:064x}") for n in range(17)), "pieces_needed": 3},
    ],
)
def test_pieces_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    view = planned()
    claim = cut(view, **changes)
    assert not are_sound(claim)
    with pytest.raises(BadEntry, match="pieces that cannot be"):
        open_claim(view, sign(A, claim))
    open_claim(view, sign(A, cut(view)))


def test_enough_pieces_with_others_are_enough_and_fewer_are_not() -> None:
    view = planned()
    claim = cut(view)
    both = read_receipts(view, claim, (receipt(B, claim, PIECES[0]), receipt(C, claim, PIECES[2])))
    assert held_pieces(claim, both) == ((0, B.node), (2, C.node))
    assert Demand(seeders=3).lacking(claim, both, 1) == ""
    assert Demand(seeders=3).lacking(claim, both[:1], 1) == "1 of 2 pieces are held"
    doubted = Demand(seeders=3, distrusted=frozenset({C.node}))
    assert doubted.lacking(claim, both, 1) == "1 of 2 pieces are held"
    same = read_receipts(view, claim, (receipt(B, claim, PIECES[0]), receipt(C, claim, PIECES[0])))
    assert Demand(seeders=3).lacking(claim, same, 1) == "1 of 2 pieces are held", "one piece twice is one"


def test_one_who_holds_it_whole_is_enough() -> None:
    view = planned()
    claim = cut(view)
    whole = read_receipts(view, claim, (receipt(COORDINATOR, claim, claim.blob, claim.size_bytes),))
    assert lacking(claim, held_pieces(claim, whole), [COORDINATOR.node], [COORDINATOR.node]) == ""


def test_receipts_for_what_is_no_piece_do_not_hold() -> None:
    view = planned()
    claim = cut(view)
    for wrong in (
        receipt(B, claim, BlobId("9" * 64)),
        receipt(B, claim, PIECES[0], piece_bytes(claim) + 1),
        receipt(A, claim, PIECES[0]),
    ):
        with pytest.raises(BadEntry, match="does not hold"):
            read_receipts(view, claim, (wrong,))
    twice = (receipt(B, claim, PIECES[0]), receipt(B, claim, PIECES[0]))
    with pytest.raises(BadEntry, match="does not hold"):
        read_receipts(view, claim, twice)
