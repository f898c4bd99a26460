"""Two entries for one position, and what only looks like it."""

import msgspec

from shoal.runlog.chain import MAX_ENTRY_BYTES, Equivocation
from shoal.runlog.entries import Stopped
from shoal.runlog.evidence import encode_proof

from .small_log import OTHER_RUN, STRANGER, Clerk


def _pair(clerk: Clerk) -> tuple[bytes, bytes]:
    """Two entries for the next position of a log."""
    return clerk.make(Stopped(reason="one")).encoded, clerk.make(Stopped(reason="two")).encoded


def _founded(**changes: object) -> Clerk:
    clerk = Clerk(**changes)  # type: ignore[arg-type]
    clerk.found()
    return clerk


ONE, TWO = _pair(_founded())
PROOF = encode_proof(Equivocation(ONE, TWO))

WORTHLESS = {
    "nothing": b"",
    "noise": b"\xc1 noise",
    "another shape": msgspec.msgpack.encode({"first": ONE, "second": TWO}),
    "one entry": msgspec.msgpack.encode([ONE]),
    "three entries": msgspec.msgpack.encode([ONE, TWO, ONE]),
    "entries that are none": encode_proof(Equivocation(b"one", b"two")),
    "one entry twice": encode_proof(Equivocation(ONE, ONE)),
    "two positions": encode_proof(Equivocation(_founded().entries[0], ONE)),
    "another run": encode_proof(Equivocation(*_pair(_founded(run=OTHER_RUN)))),
    "another coordinator": encode_proof(Equivocation(*_pair(_founded(identity=STRANGER)))),
    "one of them forged": encode_proof(Equivocation(ONE, _pair(_founded(identity=STRANGER))[1])),
    "one bit off": PROOF[:-1] + bytes([PROOF[-1] ^ 1]),
    "something after it": PROOF + b"\0",
    "too long": encode_proof(Equivocation(ONE, bytes(2 * MAX_ENTRY_BYTES))),
}
