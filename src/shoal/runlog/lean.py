"""What is remembered of every entry for as long as a run lasts, in few bytes.

In flow hashes and words; out flow the same. Invariant: what comes out is equal to what went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from shoal.base.ids import NodeId, RunId
from shoal.runlog.entries import Attestation

HASH_BYTES = 32


class Hashes(Sequence[str]):
    """Hashes in hex, by position: a list of strings would take four times as much."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Hashes) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def append(self, hashed: str) -> None:
        self._bytes += bytes.fromhex(hashed)

    def __len__(self) -> int:
        return len(self._bytes) // HASH_BYTES

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(place) for place in places]

    def _at(self, place: int) -> str:
        return self._bytes[HASH_BYTES * place : HASH_BYTES * (place + 1)].hex()


def lean_word(
    word: Attestation, run: RunId, node: NodeId, others: Mapping[NodeId, Attestation]
) -> Attestation:
    """The same word; what it has in common with others on the same state is there once for all of them."""
    like = next(iter(others.values()), word)
    return Attestation(
        run=run,
        node=node,
        at=like.at if like.at == word.at else word.at,
        state=like.state if like.state == word.state else word.state,
        how=like.how if like.how == word.how else word.how,
        snapshot=like.snapshot if like.snapshot == word.snapshot else word.snapshot,
        validation=word.validation,
    )
