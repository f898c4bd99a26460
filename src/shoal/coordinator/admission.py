"""Who may join: the pure judgement of a node's hello.

In flow a hello, the nonce it must have signed and what the run asks of those who join; out flows a refusal with its
reason, or nothing. Invariant: a node is admitted only under a key it has proved, for this run, on this connection; a
banned one never is, whatever else it shows.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from dataclasses import dataclass

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.runlog.entries import Ban
from shoal.wire.identity import node_id
from shoal.wire.messages import Hello, Proof, Refuse
from shoal.wire.signed import open_signed
from shoal.wire.versions import HERE, VOTES, Speaks, version_error
from shoal.wire.work import does_work

MAX_NAME = 40
TOKEN_PREFIX = "token."  # noqa: S105 (where the store keeps join tokens, no secret)


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that admits nodes until it expires, perhaps only some of them; only its hash is kept."""

    sha256: str
    expires_ms: int | None = None
    uses: int | None = None
    """How many new nodes it admits; None for any number."""
    nodes: tuple[NodeId, ...] = ()
    """Whom it admits; () for anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a run asks of those who want to join, beside a token."""

    ban: Ban | None = None
    allow: tuple[str, ...] = ()
    """Who may join at all; () for anybody."""
    work_bits: int = 0
    used: int = 0
    """How many nodes the token that is shown has admitted so far."""
    unvouched: str = ""
    """Why the organiser's own check does not let this node in; "" if it does."""
    speaks: Speaks = HERE
    """The versions of the wire that will do."""


OPEN = Door()


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def judge(
    hello: Hello,
    *,
    nonce: bytes,
    run: RunId,
    coordinator: NodeId,
    tokens: tuple[JoinToken, ...],
    is_member: bool,
    wall_ms: int,
    door: Door = OPEN,
    speaker: bytes | None = None,
) -> Refuse | None:
    """Why this node may not join, or None. A member proves itself by its key, whatever became of its token. `speaker`
    is the key that must have signed, where it is not the one that the node began with."""
    if not door.speaks.oldest <= hello.protocol <= door.speaks.newest:
        return _other_version(hello.protocol, door.speaks)
    proof = open_signed(hello.proof, Proof, hello.public if speaker is None else speaker)
    if proof is None or (proof.run, proof.coordinator, proof.nonce) != (hello.run, coordinator, nonce):
        return Refuse(
            code="SH-JOIN-07",
            cause="the node did not prove that it holds its key",
            next_step="join again; if it persists, the connection is being tampered with",
        )
    if hello.run != run:
        return wrong_run(hello.run)
    if door.ban is not None:
        return banned(door.ban, wall_ms)
    return None if is_member else _judge_newcomer(hello, tokens, wall_ms, door)


def _other_version(version: int, speaks: Speaks) -> Refuse:
    error = version_error(speaks, Speaks(version, version))  # As the node sees it.
    return Refuse(code=error.code, cause=error.cause, next_step=error.next_step)


def wanted_versions(speaks: Speaks, by_majority: bool) -> Speaks:
    """What a node must speak to take part: where members vote, a version that has votes."""
    return Speaks(max(speaks.oldest, VOTES), speaks.newest) if by_majority else speaks


def judge_caller(hello: Hello, nonce: bytes, coordinator: NodeId) -> Refuse | None:
    """Why this node is not even listened to, or None, while nobody leads the run: it has shown its key, and that is all
    that a vote takes."""
    door = Door(speaks=wanted_versions(HERE, by_majority=True))
    return judge(
        hello,
        nonce=nonce,
        run=hello.run,
        coordinator=coordinator,
        tokens=(),
        is_member=True,
        wall_ms=0,
        door=door,
    )


def banned(ban: Ban, wall_ms: int) -> Refuse:
    """What a banned node is told: until when, why, and what it can do."""
    until = datetime.datetime.fromtimestamp(min(ban.until_ms, _LAST_MS) / 1000, datetime.UTC)
    left_s = max(1, (ban.until_ms - wall_ms) // 1000)
    return Refuse(
        code="SH-JOIN-13",
        cause=f"this node is banned until {until:%Y-%m-%d %H:%M:%S} UTC ({left_s} s from now): {ban.reason}",
        next_step="join again after that time; or ask the organiser, who can lift it: shoal run unban RUN NODE",
    )


_LAST_MS = 253_402_300_799_000
"""The last moment of the year 9999."""


def _judge_newcomer(hello: Hello, tokens: tuple[JoinToken, ...], wall_ms: int, door: Door) -> Refuse | None:
    node = node_of(hello)
    if door.allow and node not in door.allow:
        return Refuse(
            code="SH-JOIN-14",
            cause=f"node {node[:12]} is not on the list of those who may join",
            next_step=f"ask the organiser to add {node} to membership.allow",
        )
    if refuse := _judge_token(hello, tokens, wall_ms, door.used):
        return refuse
    if not does_work(hello.run, node, hello.work, door.work_bits):
        return Refuse(
            code="SH-JOIN-15",
            cause=f"joining takes a proof of work of {door.work_bits} bits",
            next_step="join with a version of shoal that does it by itself: pip install -U shoal",
            work_bits=door.work_bits,
        )
    if door.unvouched:
        return Refuse(code="SH-JOIN-16", cause=door.unvouched, next_step="ask the organiser what it takes")
    return None


def not_served(run: RunId, error: ShoalError | None) -> Refuse:
    """Why nobody may join a run that is not in service. Of a broken store's reasons strangers hear nothing."""
    if error is None or error.code != "SH-LOG-02":
        return wrong_run(run)
    return Refuse(
        code=error.code,
        cause=error.cause,
        next_step="do not join this run again; the organiser must begin a new one",
    )


def wrong_run(run: RunId) -> Refuse:
    return Refuse(
        code="SH-JOIN-04",
        cause=f"this coordinator has no run {run[:12]}",
        next_step="ask the organiser for a ticket of a run that is on: shoal run list",
    )


def find_token(token: str, tokens: tuple[JoinToken, ...]) -> JoinToken | None:
    given = token_hash(token)
    return next((known for known in tokens if hmac.compare_digest(known.sha256, given)), None)


def _judge_token(hello: Hello, tokens: tuple[JoinToken, ...], wall_ms: int, used: int) -> Refuse | None:
    given = token_hash(hello.token)
    for known in tokens:
        if hmac.compare_digest(known.sha256, given):
            if known.expires_ms is not None and wall_ms > known.expires_ms:
                return Refuse(
                    code="SH-JOIN-03",
                    cause=f"the ticket expired {(wall_ms - known.expires_ms) // 1000} s ago",
                    next_step="ask the organiser for a new ticket",
                )
            return _judge_scope(known, node_of(hello), used)
    return Refuse(
        code="SH-JOIN-02",
        cause="the ticket's join token is not one of this run's",
        next_step="ask the organiser for a new ticket",
    )


def _judge_scope(token: JoinToken, node: NodeId, used: int) -> Refuse | None:
    if token.nodes and node not in token.nodes:
        return Refuse(
            code="SH-JOIN-02",
            cause=f"the ticket is for other nodes than {node[:12]}",
            next_step="ask the organiser for a ticket of your own",
        )
    if token.uses is not None and used >= token.uses:
        return Refuse(
            code="SH-JOIN-02",
            cause=f"the ticket has admitted its {token.uses} nodes",
            next_step="ask the organiser for a new ticket",
        )
    return None


def node_of(hello: Hello) -> NodeId:
    return node_id(hello.public)


def clean_name(name: str) -> str:
    """A name fit to print anywhere: short, and of harmless characters."""
    kept = "".join(c for c in name if c.isalnum() or c in "-_. ")
    return kept[:MAX_NAME].strip() or "node"
