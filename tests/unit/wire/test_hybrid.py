"""Hybrid signatures: both halves must hold, over the same message, under the same pair of keys."""

import pytest

from shoal.runlog.entries import Attestation, Head
from shoal.wire.hybrid import HYBRID_PUBLIC_BYTES, HYBRID_SIGNATURE_BYTES, SIGNATURE_BYTES
from shoal.wire.identity import Identity, is_hybrid, node_id, verify
from shoal.wire.signed import Signed, is_signed, open_signed, sign

ONE, TWO = Identity(b"1" * 32), Identity(b"2" * 32)
WORD = Attestation(run="r", node=ONE.node, at=Head(1, "h"), state="s")  # type: ignore[arg-type]


def test_a_hybrid_signature_opens_with_the_hybrid_key_and_with_no_other() -> None:
    signed = sign(ONE.hybrid, WORD)
    assert len(signed.signature) == HYBRID_SIGNATURE_BYTES == 3373
    assert open_signed(signed, Attestation, ONE.hybrid.public) == WORD
    assert open_signed(signed, Attestation, TWO.hybrid.public) is None
    assert not is_signed(signed, Attestation, ONE.public), "its Ed25519 half alone is over another message"
    assert not is_signed(sign(ONE, WORD), Attestation, ONE.hybrid.public)


@pytest.mark.parametrize("place", [0, 63, 64, 1000, 3372])
def test_a_flipped_bit_in_either_half_breaks_it(place: int) -> None:
    signed = sign(ONE.hybrid, WORD)
    damaged = bytearray(signed.signature)
    damaged[place] ^= 1
    assert not is_signed(Signed(signed.payload, bytes(damaged)), Attestation, ONE.hybrid.public)


def test_no_half_can_be_put_beside_another() -> None:
    mine, theirs = sign(ONE.hybrid, WORD).signature, sign(TWO.hybrid, WORD).signature
    payload = sign(ONE.hybrid, WORD).payload
    for first, second in ((mine, theirs), (theirs, mine)):
        mixed = Signed(payload, first[:SIGNATURE_BYTES] + second[SIGNATURE_BYTES:])
        for pair in (ONE.hybrid.public, TWO.hybrid.public):
            assert not is_signed(mixed, Attestation, pair)
    swapped = ONE.hybrid.public[:32] + TWO.hybrid.public[32:]
    mixed = Signed(payload, mine[:SIGNATURE_BYTES] + theirs[SIGNATURE_BYTES:])
    assert not is_signed(mixed, Attestation, swapped), "both name the pair that they belong to"


def test_one_half_alone_never_passes_for_both() -> None:
    signed = sign(ONE.hybrid, WORD)
    half = signed.signature[:SIGNATURE_BYTES]
    for forged in (half, half + bytes(3309), bytes(64) + signed.signature[64:]):
        assert not verify(ONE.hybrid.public, "Attestation", signed.payload, forged)


def test_an_id_is_that_of_the_first_key_and_the_second_is_always_the_same() -> None:
    assert node_id(ONE.hybrid.public) == node_id(ONE.public) == ONE.node == ONE.hybrid.node
    assert len(ONE.hybrid.public) == HYBRID_PUBLIC_BYTES and is_hybrid(ONE.hybrid.public)
    assert Identity(b"1" * 32).hybrid.public == ONE.hybrid.public != TWO.hybrid.public


def test_a_signature_is_of_its_domain_alone() -> None:
    signature = ONE.hybrid.sign("Claim", b"payload")
    assert verify(ONE.hybrid.public, "Claim", b"payload", signature)
    assert not verify(ONE.hybrid.public, "Receipt", b"payload", signature)
