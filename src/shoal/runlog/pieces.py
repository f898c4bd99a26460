"""Updates that leave in coded pieces: what a claim may say of them, and whether enough of them are held.

In flow a claim and opened receipts; out flow who holds which piece. Invariant: a claim names every piece by its hash,
so that nobody can pass off another; and an update counts as held only if somebody has it whole, or others together have
as many of its pieces as give it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.base.ids import NodeId
from shoal.runlog.entries import Claim, Receipt

MAX_PIECES = 16
Held = tuple[tuple[int, NodeId], ...]
"""(number of the piece, who has it)."""


def piece_bytes(claim: Claim) -> int:
    """What each piece of an update takes."""
    return -(-claim.size_bytes // claim.pieces_needed) if claim.pieces_needed else 0


def are_sound(claim: Claim) -> bool:
    """Whether what a claim says of pieces can be: none, or some with their number."""
    count = len(claim.pieces)
    if not count:
        return claim.pieces_needed == 0
    return 0 < claim.pieces_needed <= count <= MAX_PIECES and len(set(claim.pieces)) == count


def names_it(claim: Claim, receipt: Receipt) -> bool:
    """Whether a receipt is for this update, or for a piece of it."""
    if receipt.blob == claim.blob:
        return receipt.size_bytes == claim.size_bytes
    return receipt.blob in claim.pieces and receipt.size_bytes == piece_bytes(claim)


def held_pieces(claim: Claim, receipts: Sequence[Receipt]) -> Held:
    """Who holds which piece, by receipts that fit the claim."""
    numbers = {blob: number for number, blob in enumerate(claim.pieces)}
    return tuple((numbers[item.blob], item.holder) for item in receipts if item.blob in numbers)


def lacking(claim: Claim, held: Held, whole: Collection[NodeId], trusted: Collection[NodeId]) -> str:
    """In words, what is missing before others could give the update without its author; "" if nothing."""
    if not claim.pieces or any(node in trusted for node in whole):
        return ""
    count = len({number for number, node in held if node in trusted})
    return "" if count >= claim.pieces_needed else f"{count} of {claim.pieces_needed} pieces are held"
