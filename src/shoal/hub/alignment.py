"""What a hub must not forget: where its region stood against the parent when it last claimed, or last brought news.

In flow an alignment and the claim that it follows; out flows the same after a crash. Invariant: it is durable before
the claim whose number it has, so that after a crash the last claim that is kept finds the alignment behind it; one that
rotted is none.
"""

from __future__ import annotations

from collections.abc import Callable

import blake3
import msgspec

from shoal.base.disk import Disk, write_atomic
from shoal.base.ids import RunId
from shoal.runlog.entries import Graft

_SUM_BYTES = 32


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    anchor: bytes
    """Parameters from which the next update is measured."""
    known: bytes
    """The parent's, as they were merged last."""
    news: bytes
    """What the parent did and the region has not been brought yet; b"" for nothing."""
    claimed: int
    """The region's position up to which its work was claimed."""
    graft: Graft | None = None
    """The news that were brought last; they may not have entered yet."""
    region: RunId = RunId("")
    """Whose it is: a machine may be the hub of several regions of a run, one after the other."""


class AlignmentFile:
    """One hub's alignment, by the sequence of the claim before it; -1 before the first."""

    def __init__(self, disk: Disk, reached: Callable[[str], None]) -> None:
        self._disk = disk
        self._reached = reached

    def save(self, sequence: int, alignment: Alignment) -> None:
        name = _name(sequence)
        content = msgspec.msgpack.encode(alignment)
        write_atomic(self._disk, name, blake3.blake3(content).digest() + content, self._reached)
        for other in self._disk.list(""):
            if other not in (name, _name(sequence - 1)):
                self._disk.remove(other)

    def load(self, sequence: int, params: int, region: RunId) -> Alignment | None:
        """The alignment after this claim; None if there is none of this region that fits so many parameters."""
        if self._disk.size(_name(sequence)) is None:
            return None
        try:
            found = msgspec.msgpack.decode(_checked(self._disk.read(_name(sequence))), type=Alignment)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        sizes = {len(found.anchor), len(found.known), len(found.news or found.known)}
        return found if sizes == {4 * params} and found.region in ("", region) else None


def _checked(data: bytes) -> bytes:
    """What was saved, without its checksum; bytes that nothing can be read from if it is another."""
    sound = blake3.blake3(data[_SUM_BYTES:]).digest() == data[:_SUM_BYTES]
    return data[_SUM_BYTES:] if sound else b""


def _name(sequence: int) -> str:
    return f"alignment-{sequence + 1}"
