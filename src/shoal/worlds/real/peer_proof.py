"""How a peer that puts says who it is, once per connection.

In flow the server's nonce for this connection and the sender's key; out flow two headers, and on the other
side an authenticated `NodeId`. Invariant: a proof is good for one connection to one server only: it signs
the server's id, which the sender has checked by TLS, and a nonce that the server drew for this connection.
"""

from __future__ import annotations

import secrets

from shoal.base.ids import NodeId
from shoal.wire.identity import Identity, node_id, verify

NONCE_PATH = ".peer/nonce"
NONCE_BYTES = 32
_DOMAIN = "peer"
_KEY = "Shoal-Key"
_SIGNATURE = "Shoal-Signature"


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def make_proof(identity: Identity, server: NodeId, nonce: bytes) -> dict[str, str]:
    """The headers that prove `identity` to `server` on the connection that drew `nonce`."""
    signature = identity.sign(_DOMAIN, _payload(server, nonce, identity.public))
    return {_KEY: identity.public.hex(), _SIGNATURE: signature.hex()}


def proven_sender(headers: dict[str, str], server: NodeId, nonce: bytes) -> NodeId | None:
    """Who signed these headers for us on this connection, or None where nobody did. Never raises."""
    try:
        public = bytes.fromhex(headers[_KEY.lower()])
        signature = bytes.fromhex(headers[_SIGNATURE.lower()])
    except (KeyError, ValueError):
        return None
    good = verify(public, _DOMAIN, _payload(server, nonce, public), signature)
    return node_id(public) if good else None


def _payload(server: NodeId, nonce: bytes, public: bytes) -> bytes:
    return server.encode() + nonce + public
