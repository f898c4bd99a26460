"""Hashes and words that take few bytes are what they were."""

import sys

import msgspec
import pytest

from shoal.runlog.entries import Attestation, Head
from shoal.runlog.lean import Hashes, lean_word
from shoal.wire.signed import digest

from .small_log import NODES, RUN

HASHED = [digest(bytes([number])) for number in range(50)]


def test_hashes_are_read_as_from_a_list_and_take_a_third() -> None:
    hashes = Hashes()
    for hashed in HASHED:
        hashes.append(hashed)
    assert list(hashes) == HASHED and len(hashes) == 50
    assert (hashes[0], hashes[7], hashes[-1]) == (HASHED[0], HASHED[7], HASHED[-1])
    assert hashes[3:40:2] == HASHED[3:40:2] and hashes[-4:] == HASHED[-4:]
    with pytest.raises(IndexError):
        hashes[50]
    assert sys.getsizeof(hashes._bytes) * 3 < sum(map(sys.getsizeof, HASHED))


def test_words_on_one_state_share_what_they_say() -> None:
    first = _word(0, HASHED[1])
    same = lean_word(_word(1, HASHED[1]), RUN, NODES[1].node, {NODES[0].node: first})
    other = lean_word(_word(2, HASHED[2]), RUN, NODES[2].node, {NODES[0].node: first})
    assert same == _word(1, HASHED[1]) and same.at is first.at and same.state is first.state
    assert other == _word(2, HASHED[2]) and other.at is first.at


def _word(number: int, state: str) -> Attestation:
    """As read from bytes: nothing of it is shared with another."""
    word = Attestation(run=RUN, node=NODES[number].node, at=Head(5, HASHED[0]), state=state)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(word), type=Attestation)
