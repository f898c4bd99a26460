"""TLS between nodes: certificates made from node keys, and clients that accept exactly one node.

In flows an `Identity` or an expected `NodeId`; out flow SSL contexts. Invariant: a client's handshake fails
unless the other side proves that it holds the key whose hash is the expected node id. No authority is
asked: names and dates in the certificate mean nothing, the key means everything.
"""

from __future__ import annotations

import datetime
import secrets
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity, node_id

# Volunteers' clocks are often wrong, and the pin needs no dates.
_ALWAYS = (
    datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC),
)


class WrongNode(ssl.SSLError):
    """The handshake was sound, but with another node than the one expected."""

    def __init__(self, expected: NodeId, found: str) -> None:
        super().__init__(f"expected node {expected}, found {found}")
        self.expected = expected
        self.found = found


def certificate(identity: Identity) -> x509.Certificate:
    """The node's self-signed certificate; the same key always gives the same subject and dates."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.node)])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=identity.private.public_key(),
        serial_number=int(identity.node[:32], 16) | 1,
        not_valid_before=_ALWAYS[0],
        not_valid_after=_ALWAYS[1],
    )
    return builder.sign(identity.private, None)


def server_context(identity: Identity) -> ssl.SSLContext:
    """TLS 1.3 as this node."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Sessions are not resumed: connections are kept, and a ticket would make an idle socket look readable.
    context.num_tickets = 0
    _load_key(context, identity)
    return context


def _load_key(context: ssl.SSLContext, identity: Identity) -> None:
    """OpenSSL's loader takes only files; the key in this one is encrypted under a throwaway password."""
    password = secrets.token_bytes(32).hex()
    key = identity.private.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    )
    with tempfile.TemporaryDirectory(prefix="shoal-tls-") as folder:
        pem = Path(folder, "node.pem")
        pem.write_bytes(key + certificate(identity).public_bytes(Encoding.PEM))
        context.load_cert_chain(pem, password=password)


class PinnedContext(ssl.SSLContext):
    """A client context bound to one node."""

    expected: NodeId


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _check_pin(self)


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_pin(self)


def client_context(node: NodeId) -> ssl.SSLContext:
    """TLS 1.3 to `node` and nobody else: handshakes with others raise `WrongNode`."""
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The chain and the host name are not checked because the pin, checked after every handshake, is stronger.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.expected = node
    context.sslobject_class = _PinnedObject
    context.sslsocket_class = _PinnedSocket
    return context


def _check_pin(connection: ssl.SSLObject | ssl.SSLSocket) -> None:
    context = connection.context
    if not isinstance(context, PinnedContext):
        raise ssl.SSLError("this connection has no pin")
    found = certified_node(connection.getpeercert(binary_form=True))
    if found != context.expected:
        raise WrongNode(context.expected, found or "a certificate that is not a node's")


def certified_node(der: bytes | None) -> NodeId | None:
    """The node whose key a certificate carries, or None where it is not a node's certificate."""
    try:
        public = x509.load_der_x509_certificate(der or b"").public_key()
    except ValueError:
        return None
    return node_id(public.public_bytes_raw()) if isinstance(public, Ed25519PublicKey) else None


def not_who_was_expected(address: str, wrong: WrongNode) -> ShoalError:
    return ShoalError(
        "SH-JOIN-07",
        f"{address} answered as {wrong.found}, not as {wrong.expected}",
        "ask the organiser for a fresh ticket; if it names the same node, somebody may be intercepting you",
    )
