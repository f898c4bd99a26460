from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from shoal.wire.identity import Identity
from shoal.worlds.real.tls import certificate, certified_node


def test_a_certificate_names_the_node_that_holds_its_key() -> None:
    identity = Identity.generate()
    assert certified_node(certificate(identity).public_bytes(Encoding.DER)) == identity.node


@pytest.mark.parametrize("der", [None, b"", b"garbage", bytes(1000)])
def test_garbage_names_nobody(der: bytes | None) -> None:
    assert certified_node(der) is None


def test_a_certificate_with_another_kind_of_key_names_nobody() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now).sign(key, SHA256())
    assert certified_node(made.public_bytes(Encoding.DER)) is None
