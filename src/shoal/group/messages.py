"""What members and hub say to each other, around the rounds of `secagg`.

In flow bytes from strangers; out flow structs, or None. Invariant: one request, one reply, both of bounded size, so
that members behind a router need nothing but a way out.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from shoal.base.ids import BlobId
from shoal.runlog.entries import DataRange
from shoal.secagg.messages import (
    MOST_HUB_BYTES,
    Agreed,
    Dealt,
    Envelopes,
    Failed,
    Finished,
    Keys,
    Many,
    Name,
    Survivors,
    Waiting,
)
from shoal.secagg.terms import Key, Terms
from shoal.wire.signed import Signed

T = TypeVar("T")
PATH = "masks"
MOST_SAID_BYTES = 2 << 20
TOKEN_PREFIX = "masked-"  # noqa: S105 (the rest of the token is the secret)
"""By which a ticket is known to lead to a group."""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member's part of the hub's assignment."""

    base: BlobId
    """The parameters to begin from, as floats."""
    base_bytes: int
    round: int
    first_step: int
    data: DataRange
    steps: int
    batch: int


class Enter(msgspec.Struct, frozen=True, tag="enter", forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(max_length=200)]
    public: Key


class Ask(msgspec.Struct, frozen=True, tag="ask", forbid_unknown_fields=True):
    """What now? Also a sign of life."""

    beat: bool = False
    """Nothing but a sign of life: the reply says which round there is, if any, and not what is said in it."""


class SayHello(msgspec.Struct, frozen=True, tag="hello", forbid_unknown_fields=True):
    word: Signed


class SayDeal(msgspec.Struct, frozen=True, tag="deal", forbid_unknown_fields=True):
    word: Signed
    envelopes: Annotated[dict[Name, Envelopes], Many]


class SayNumbers(msgspec.Struct, frozen=True, tag="numbers", forbid_unknown_fields=True):
    word: Signed
    blob: Annotated[str, msgspec.Meta(max_length=64)]
    """The masked numbers, which the hub holds by now."""


class SayAgreement(msgspec.Struct, frozen=True, tag="agreement", forbid_unknown_fields=True):
    word: Signed


class SayReveal(msgspec.Struct, frozen=True, tag="reveal", forbid_unknown_fields=True):
    word: Signed


Said = Enter | Ask | SayHello | SayDeal | SayNumbers | SayAgreement | SayReveal


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    reason: Annotated[str, msgspec.Meta(max_length=200)]
    over: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """Why the run has ended, once it has."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A round has begun: train this, then say hello."""

    terms: Terms
    task: Task


Reply = Keys | Dealt | Survivors | Agreed | Finished | Waiting | Failed | Idle | Call
_said, _reply = msgspec.msgpack.Decoder(Said), msgspec.msgpack.Decoder(Reply)


def read_said(body: bytes) -> Said | None:
    return _read(_said, body, MOST_SAID_BYTES)


def read_reply(body: bytes) -> Reply | None:
    return _read(_reply, body, MOST_HUB_BYTES)


def _read(decoder: msgspec.msgpack.Decoder[T], body: bytes, most_bytes: int) -> T | None:
    if len(body) > most_bytes:
        return None
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
