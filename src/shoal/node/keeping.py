"""What a node must not forget: its copy of the log, its last claim, and its private training state.

In flow signed claims and local states; out flow the same after a crash. Invariant: blob and local state are
durable before the claim's record, and the record before the claim leaves; so after a crash the same bytes go
out again, and the next update continues from the state that made them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import blake3
import msgspec

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.node.events import Outgoing
from shoal.replica.blobs import chunk_list
from shoal.runlog.entries import Claim
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView, verify_log
from shoal.wire.identity import node_id
from shoal.wire.signed import Signed, parse

log = logging.getLogger(__name__)

_OUTBOX = "outbox"
_SPARE = "spare"
"""The file of a private state that is past."""
COORDINATORS = "coordinators"
RECEIPTS = "receipts"
RECEIPT_NAMES = "[0-9]*.receipt"
RECEIPTS_KEPT = 1000
SUM_BYTES = 32


def is_summed(data: bytes) -> bool:
    """True if the bytes begin with the checksum of the rest."""
    return blake3.blake3(data[SUM_BYTES:]).digest() == data[:SUM_BYTES]


class Keeping:
    """One run's private folder on this node."""

    def __init__(self, disk: Disk, run: RunId, reached: Callable[[str], None]) -> None:
        self.log = FileLogStore(disk, reached)
        self._disk = disk
        self._run = run
        self._proof = f"proof-{run[:12]}.msgpack"
        self._reached = reached

    def load_view(self, coordinator: NodeId) -> RunView:
        """The run as this node's copy of the log tells it; a copy that is damaged, or of another coordinator's, is
        set aside and fetched again."""
        try:
            entries = list(self.log.read(self._run))
        except ShoalError as error:
            return self._begin_anew(error.cause)
        view, finding = verify_log(entries, self._run)
        if finding is not None:
            return self._begin_anew(f"entry {finding.position} {finding.what}")
        if view.genesis is not None and node_id(view.genesis.coordinator) != coordinator:
            return self._begin_anew("another coordinator signed it")
        return view

    def _begin_anew(self, cause: str) -> RunView:
        self.log.set_aside(self._run)
        _found("log", f"{cause}; it was set aside, and is fetched again")
        return RunView()

    def save_outgoing(self, outgoing: Outgoing, local: bytes) -> None:
        """Make a claim and the state behind it durable, in that order's reverse. The state before it is the room of the
        next one: fresh memory or blocks for something as long as the model cost more than the copying."""
        name = f"local-{outgoing.claim.sequence}"
        write_atomic(self._disk, name, local, self._reached, _SPARE)
        self._reached("node.before-outbox")
        write_atomic(self._disk, _OUTBOX, msgspec.msgpack.encode(outgoing.signed), self._reached)
        self._reached("node.after-outbox")
        for other in self._disk.list(""):
            if other.startswith("local-") and other != name:
                self._disk.rename(other, _SPARE)

    def load_outgoing(self) -> tuple[Outgoing, bytes] | None:
        """The last claim, with the private state that followed it."""
        if self._disk.size(_OUTBOX) is None:
            return None
        signed = parse(self._disk.read(_OUTBOX), Signed)
        claim = parse(signed.payload, Claim) if signed else None
        if signed is None or claim is None:
            self.forget_outgoing()
            return None
        if self._disk.size(f"local-{claim.sequence}") is None:
            return None
        local = self._disk.read(f"local-{claim.sequence}")
        # What rotted is as good as lost: it costs momentum, and the claim goes out all the same.
        sound = chunk_list(local).blob == claim.local_after
        if not sound:
            what = (
                "it is not the state that the last claim names; the inner optimiser begins with a fresh one"
            )
            _found(f"local-{claim.sequence}", what)
        return Outgoing(claim=claim, signed=signed), local if sound else b""

    def forget_outgoing(self) -> None:
        """Leave a claim that is not what this node signed: it is overwritten by the next."""
        _found(_OUTBOX, "it is not a claim that this node signed; the log says what became of that")

    def save_coordinators(self, addresses: tuple[str, ...]) -> None:
        """Keep where the run's coordinators were said to be, for the next start."""
        encoded = msgspec.msgpack.encode(addresses)
        write_atomic(self._disk, COORDINATORS, blake3.blake3(encoded).digest() + encoded, self._reached)

    def load_coordinators(self) -> tuple[str, ...]:
        """The addresses that were kept; none if the file is damaged: the ticket has some, and more are told soon."""
        data = self._disk.read(COORDINATORS) if self._disk.size(COORDINATORS) is not None else b""
        encoded = data[SUM_BYTES:]
        if data and not is_summed(data):
            _found(
                COORDINATORS,
                "it is not what its checksum says; the ticket has addresses, and more are told soon",
            )
        return msgspec.msgpack.decode(encoded, type=tuple[str, ...]) if is_summed(data) else ()

    def save_receipt(self, page: int, encoded: bytes) -> None:
        """Keep what the coordinator signed that this node has earned; of many, the last ones, which say it all."""
        name = f"{page:08}.receipt"
        write_atomic(self._disk, f"{RECEIPTS}/{name}", encoded, lambda point: None)
        for old in self._disk.list(RECEIPTS)[:-RECEIPTS_KEPT]:
            self._disk.remove(f"{RECEIPTS}/{old}")

    def save_proof(self, encoded: bytes) -> None:
        """Keep the evidence against a coordinator."""
        write_atomic(self._disk, self._proof, encoded, self._reached)

    def load_proof(self) -> bytes:
        """The evidence that was kept; empty if there is none."""
        return self._disk.read(self._proof) if self._disk.size(self._proof) is not None else b""


def _found(file: str, cause: str) -> None:
    """Name what rotted: the node goes on, but its disk should be looked at."""
    log.warning("file_damaged", extra={"file": file, "cause": cause})
