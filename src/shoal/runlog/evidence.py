"""Evidence against a run's coordinator: two different entries that it signed for one position.

In flow bytes from anybody; out flows a proof that convinces everyone who knows the coordinator's key. Invariant:
what proves nothing has no effect, and what does is durable before anybody acts on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from shoal.base.ids import RunId
from shoal.runlog.chain import MAX_ENTRY_BYTES, Equivocation, read_link
from shoal.wire.signed import parse

MAX_PROOF_BYTES = 2 * MAX_ENTRY_BYTES + 64


class _Pair(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    first: bytes
    second: bytes


def encode_proof(proof: Equivocation) -> bytes:
    return msgspec.msgpack.encode(_Pair(proof.first, proof.second))


def read_proof(encoded: bytes, run: RunId, *coordinator: bytes) -> Equivocation | None:
    """The proof in hostile bytes, or None unless it holds against this coordinator (one of its public keys) of this
    run."""
    pair = parse(encoded, _Pair) if len(encoded) <= MAX_PROOF_BYTES else None
    if pair is None:
        return None
    proof = Equivocation(pair.first, pair.second)
    holds = any(map(proof.holds, coordinator)) and read_link(proof.first).entry.run == run
    return proof if holds else None


class Evidence:
    """What one process has against the coordinator of one run: nothing, or the first proof it met.

    `coordinator` gives the coordinator's public keys, none while they are not known; `keep` makes a proof durable.
    Safe to use from any thread.
    """

    def __init__(
        self, *, run: RunId, coordinator: Callable[[], tuple[bytes, ...]], keep: Callable[[bytes], None]
    ) -> None:
        self.proof: Equivocation | None = None
        self.encoded = b""
        """The proof as it is handed on; empty while there is none."""
        self._run = run
        self._coordinator = coordinator
        self._keep = keep
        self._lock = threading.Lock()

    def take(self, encoded: bytes) -> bool:
        """True if this proves something; the first such proof is kept."""
        proof = self._read(encoded)
        if proof is None:
            return False
        with self._lock:
            if self.proof is None:
                self._keep(encoded)
                self.encoded, self.proof = encoded, proof
        return True

    def restore(self, encoded: bytes) -> None:
        """Begin with what was kept; what does not hold is as good as nothing."""
        proof = self._read(encoded)
        if proof is not None:
            self.encoded, self.proof = encoded, proof

    def _read(self, encoded: bytes) -> Equivocation | None:
        return read_proof(encoded, self._run, *self._coordinator())
