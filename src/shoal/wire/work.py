"""Proof of work: an identity that costs something, so that one machine is not cheaply many nodes.

In flow a run, a node and a number; out flows whether the number's hash is rare enough, or such a number. Invariant: it
is bound to one key in one run, found once, and checked by one hash.
"""

from __future__ import annotations

import itertools

import blake3

from shoal.base.ids import NodeId, RunId

MOST_BITS = 30
"""More than this nobody does: some minutes."""


def does_work(run: RunId, node: NodeId, work: int, bits: int) -> bool:
    """True if this number shows so many bits of work for this node in this run."""
    return _hash(f"shoal/work/{run}/{node}/", work) >> (64 - bits) == 0


def find_work(run: RunId, node: NodeId, bits: int) -> int:
    """The first number that does; about 2 ** bits hashes."""
    prefix = f"shoal/work/{run}/{node}/"
    return next(number for number in itertools.count() if _hash(prefix, number) >> (64 - bits) == 0)


def _hash(prefix: str, number: int) -> int:
    return int.from_bytes(blake3.blake3(f"{prefix}{number}".encode()).digest(length=8), "big")
