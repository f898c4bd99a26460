"""Which version of the wire two peers use."""

from __future__ import annotations

import asyncio

import pytest

from shoal.wire.messages import Beat, Goodbye, decode, encode
from shoal.wire.versions import HERE, PROTOCOL, Speaking, Speaks, agree, read_range, stamped, version_error


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        (Speaks(1, 2), Speaks(1, 2), 2),
        (Speaks(1, 2), Speaks(1, 1), 1),
        (Speaks(1, 1), Speaks(1, 2), 1),
        (Speaks(2, 4), Speaks(3, 9), 4),
        (Speaks(2, 2), Speaks(1, 1), None),
        (Speaks(1, 1), Speaks(2, 3), None),
    ],
)
def test_the_highest_that_both_speak(ours: Speaks, theirs: Speaks, common: int | None) -> None:
    assert agree(ours, theirs) == agree(theirs, ours) == common


def test_whoever_is_older_is_told_to_upgrade() -> None:
    here, there = version_error(Speaks(2, 3), Speaks(1, 1)), version_error(Speaks(1, 1), Speaks(2, 3))
    assert here.code == there.code == "SH-JOIN-06"
    assert "upgrade this one" in here.next_step and "upgrade the other side" in there.next_step


def test_ranges_are_read_and_bounded() -> None:
    assert read_range("1-2") == HERE and read_range("1") == Speaks(1, 1)
    for wrong in ("", "0-1", "2-1", f"1-{PROTOCOL + 1}", "a-b"):
        with pytest.raises(ValueError):
            read_range(wrong)


class _Pipe:
    """A channel that gives back what was sent."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def admit(self) -> None: ...

    async def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    async def recv(self) -> bytes:
        return self.frames.pop()

    async def close(self) -> None: ...


def test_frames_have_the_version_that_was_agreed_and_no_other_is_taken() -> None:
    pipe = _Pipe()
    speaking = Speaking(pipe, 1)

    async def story() -> None:
        await speaking.send(encode(Goodbye(reason="x")))
        assert pipe.frames[0][1] == 1
        assert decode(await speaking.recv()) == Goodbye(reason="x")
        pipe.frames += [stamped(encode(Beat(length=1)), version) for version in (1, 2)]
        assert (await speaking.recv())[1] == 1 and not pipe.frames

    asyncio.run(story())
