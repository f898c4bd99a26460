"""Versions of the wire: which ones a peer speaks, and the one that two of them use.

In flow two ranges; out flows the highest version in both, or what to do about it. Invariant: after the first messages
every frame of a connection has the version that was agreed on, and no other is listened to.

    1   the first
    2   votes and proposals, for runs that a majority keeps; everything else as in 1
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.host import Channel

OLDEST, PROTOCOL = 1, 2
VOTES = 2
"""The first that has votes."""
_ARRAY, _PLACE = b"\x92", 1
"""How a frame begins, and where it has its version: it is an array of two, the version first."""


class Speaks(NamedTuple):
    """The versions that a peer speaks, from the oldest to the newest."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.oldest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


HERE = Speaks(OLDEST, PROTOCOL)


def read_range(text: str) -> Speaks:
    """`1-2` or `1`. Raises `ValueError` for what is no range, or not spoken here."""
    first, _, last = text.partition("-")
    speaks = Speaks(int(first), int(last or first))
    if not HERE.oldest <= speaks.oldest <= speaks.newest <= HERE.newest:
        raise ValueError(f"{text} is not within {HERE.oldest}-{HERE.newest}")
    return speaks


def agree(ours: Speaks, theirs: Speaks) -> int | None:
    """The highest version that both speak."""
    common = min(ours.newest, theirs.newest)
    return common if common >= max(ours.oldest, theirs.oldest) else None


def version_error(theirs: Speaks, ours: Speaks = HERE) -> ShoalError:
    who = "the other side, or ask its owner to" if theirs.newest < ours.oldest else "this one"
    return ShoalError(
        "SH-JOIN-06",
        f"the other side speaks version {theirs} of the protocol, this one {ours}",
        f"upgrade {who}: pip install -U shoal",
    )


def stamped(frame: bytes, version: int) -> bytes:
    """The frame with this version."""
    return frame if frame[_PLACE] == version else frame[:_PLACE] + bytes([version]) + frame[_PLACE + 1 :]


class Speaking:
    """A channel on which a version was agreed."""

    def __init__(self, channel: Channel, version: int) -> None:
        self.version = version
        self.inner = channel
        self._begin = _ARRAY + bytes([version])

    def admit(self) -> None:
        self.inner.admit()

    def send(self, frame: bytes) -> Coroutine[Any, Any, None]:
        return self.inner.send(stamped(frame, self.version))

    async def recv(self) -> bytes:
        while True:
            frame = await self.inner.recv()
            if frame.startswith(self._begin) or not frame.startswith(_ARRAY):
                return frame

    async def close(self) -> None:
        await self.inner.close()
