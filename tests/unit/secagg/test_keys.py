"""Envelopes: opened by the right pair of keys in the right context, and by nothing less."""

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.secagg.keys import ENVELOPE_EXTRA_BYTES, PUBLIC_BYTES, KeyPair, close, derive

SEED, OTHER = b"a" * 32, b"b" * 32


def _parts(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    kem = MLKEM768PrivateKey.from_seed_bytes(derive(seed, b"ml-kem-768", 64))
    return kem, X25519PrivateKey.from_private_bytes(derive(seed, b"x25519"))


def test_an_envelope_is_for_one_key_and_one_context() -> None:
    pair = KeyPair.of(SEED)
    envelope = close(b"secret", pair.public, b"here")
    assert envelope is not None and len(envelope) == 6 + ENVELOPE_EXTRA_BYTES
    assert pair.open(envelope, b"here") == b"secret"
    assert pair.open(envelope, b"there") is None
    assert KeyPair.of(OTHER).open(envelope, b"here") is None
    assert pair.open(envelope[:-1] + bytes([envelope[-1] ^ 1]), b"here") is None


def test_half_of_the_key_opens_nothing() -> None:
    """Whoever breaks X25519, or ML-KEM, but not both, has nothing."""
    envelope = close(b"secret", KeyPair.of(SEED).public, b"")
    assert envelope is not None
    (kem, curve), (other_kem, other_curve) = _parts(SEED), _parts(OTHER)
    for mixed in (MLKEM768X25519PrivateKey(kem, other_curve), MLKEM768X25519PrivateKey(other_kem, curve)):
        assert KeyPair(mixed, b"").open(envelope, b"") is None
    assert KeyPair(MLKEM768X25519PrivateKey(kem, curve), b"").open(envelope, b"") == b"secret"


def test_keys_are_a_function_of_their_seed() -> None:
    assert KeyPair.of(SEED).public == KeyPair.of(SEED).public != KeyPair.of(OTHER).public
    assert len(KeyPair.of(SEED).public) == PUBLIC_BYTES


@given(st.binary(max_size=1400))
@settings(max_examples=50, deadline=None)
def test_hostile_bytes_are_no_key_and_no_envelope(data: bytes) -> None:
    assert KeyPair.of(SEED).open(data, b"") is None
    for public in (
        data,
        b"\xff" * PUBLIC_BYTES,
        bytes(PUBLIC_BYTES),
        KeyPair.of(SEED).public[:-32] + bytes(32),
    ):
        assert len(public) == PUBLIC_BYTES or close(b"", public, b"") is None
    assert close(b"", KeyPair.of(SEED).public[:-32] + bytes(32), b"") is None
