import pytest

from shoal.wire.identity import Identity, node_id, verify

ONE, TWO = Identity(b"1" * 32), Identity(b"2" * 32)


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


@pytest.mark.parametrize("public", [b"", b"short", b"\xff" * 32, b"\0" * 32, b"x" * 33])
@pytest.mark.parametrize("signature", [b"", b"\0" * 64, b"\xff" * 64, b"x" * 65])
def test_verify_never_raises(public: bytes, signature: bytes) -> None:
    assert not verify(public, "Claim", b"payload", signature)


@pytest.mark.parametrize("secret", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_has_32_bytes(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32"):
        Identity(secret)
