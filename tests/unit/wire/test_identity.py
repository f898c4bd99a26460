import blake3
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.base.memo import SLOT_BYTES, Memo
from shoal.wire import identity
from shoal.wire.identity import Identity, node_id, verify

ONE, TWO = Identity(b"1" * 32), Identity(b"2" * 32)


def _signed_elsewhere(payload: bytes) -> bytes:
    """A signature of `ONE` that this process has not made by `Identity.sign`, and so does not know."""
    message = b"shoal/Claim\0" + blake3.blake3(payload).digest()
    return Ed25519PrivateKey.from_private_bytes(b"1" * 32).sign(message)


def test_an_id_is_the_hash_of_the_key() -> None:
    assert ONE.node == node_id(ONE.public) and len(ONE.node) == 40 and ONE.node != TWO.node
    assert Identity(ONE.secret).node == ONE.node
    assert Identity.generate().node != Identity.generate().node


def test_showing_an_identity_shows_no_secret() -> None:
    assert ONE.secret.hex() not in repr(ONE) and ONE.node in repr(ONE)


def test_a_signature_covers_domain_payload_and_signer() -> None:
    signature = ONE.sign("Claim", b"payload")
    assert verify(ONE.public, "Claim", b"payload", signature)
    assert not verify(ONE.public, "Receipt", b"payload", signature)
    assert not verify(ONE.public, "Claim", b"payloaD", signature)
    assert not verify(TWO.public, "Claim", b"payload", signature)
    for i in range(64):
        bent = bytearray(signature)
        bent[i] ^= 1
        assert not verify(ONE.public, "Claim", b"payload", bytes(bent))


def test_a_signature_from_elsewhere_is_checked() -> None:
    signature = _signed_elsewhere(b"from afar")
    for _ in range(2):  # The second answer is remembered.
        assert verify(ONE.public, "Claim", b"from afar", signature)
        assert not verify(ONE.public, "Claim", b"from there", signature)
        assert not verify(TWO.public, "Claim", b"from afar", signature)
    assert ONE.sign("Claim", b"from afar") == signature


def test_answers_are_remembered_only_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_remembered", Memo[bytes, bool](8 * (SLOT_BYTES + identity.CHECK_BYTES)))
    signatures = [ONE.sign("Claim", bytes([number])) for number in range(20)]
    assert len(identity._remembered) <= 8
    assert all(verify(ONE.public, "Claim", bytes([n]), made) for n, made in enumerate(signatures))
    assert not any(verify(TWO.public, "Claim", bytes([n]), made) for n, made in enumerate(signatures))
    assert len(identity._remembered) <= 8


@pytest.mark.parametrize("public", [b"", b"short", b"\xff" * 32, b"\0" * 32, b"x" * 33])
@pytest.mark.parametrize("signature", [b"", b"\0" * 64, b"\xff" * 64, b"x" * 65])
def test_verify_never_raises(public: bytes, signature: bytes) -> None:
    assert not verify(public, "Claim", b"payload", signature)


@pytest.mark.parametrize("secret", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_has_32_bytes(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32"):
        Identity(secret)


def test_what_was_found_sound_says_nothing_of_other_words_under_the_same_signature() -> None:
    signature = ONE.sign("Claim", b"words")
    identity.forget_checks()
    for _ in range(2):
        assert verify(ONE.public, "Claim", b"words", signature)
        assert not verify(ONE.public, "Claim", b"other words", signature)
        assert not verify(ONE.public, "Receipt", b"words", signature)
        assert not verify(TWO.public, "Claim", b"words", signature)
