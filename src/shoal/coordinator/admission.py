"""Who may join: the pure judgement of a node's hello.

In flow a hello, the nonce it must have signed and the run's tokens; out flows a refusal with its reason, or
nothing. Invariant: a node is admitted only under a key it has proved, for this run, on this connection.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.wire.identity import node_id
from shoal.wire.messages import PROTOCOL, Hello, Proof, Refuse
from shoal.wire.signed import open_signed

MAX_NAME = 40
TOKEN_PREFIX = "token."  # noqa: S105 (where the store keeps join tokens, no secret)


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that admits nodes until it expires; only its hash is kept."""

    sha256: str
    expires_ms: int | None = None


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
) -> Refuse | None:
    """Why this node may not join, or None. A member proves itself by its key, whatever became of its token."""
    if hello.protocol != PROTOCOL:
        return Refuse(
            code="SH-JOIN-06",
            cause=f"this node speaks protocol {hello.protocol}, the coordinator {PROTOCOL}",
            next_step="install the coordinator's version of shoal",
        )
    proof = open_signed(hello.proof, Proof, hello.public)
    if proof is None or (proof.run, proof.coordinator, proof.nonce) != (hello.run, coordinator, nonce):
        return Refuse(
            code="SH-JOIN-07",
            cause="the node did not prove that it holds its key",
            next_step="join again; if it persists, the connection is being tampered with",
        )
    if hello.run != run:
        return wrong_run(hello.run)
    return None if is_member else _judge_token(hello.token, tokens, wall_ms)


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


def _judge_token(token: str, tokens: tuple[JoinToken, ...], wall_ms: int) -> Refuse | None:
    given = token_hash(token)
    for known in tokens:
        if hmac.compare_digest(known.sha256, given):
            if known.expires_ms is not None and wall_ms > known.expires_ms:
                return Refuse(
                    code="SH-JOIN-03",
                    cause=f"the ticket expired {(wall_ms - known.expires_ms) // 1000} s ago",
                    next_step="ask the organiser for a new ticket",
                )
            return None
    return Refuse(
        code="SH-JOIN-02",
        cause="the ticket's join token is not one of this run's",
        next_step="ask the organiser for a new ticket",
    )


def node_of(hello: Hello) -> NodeId:
    return node_id(hello.public)


def clean_name(name: str) -> str:
    """A name fit to print anywhere: short, and of harmless characters."""
    kept = "".join(c for c in name if c.isalnum() or c in "-_. ")
    return kept[:MAX_NAME].strip() or "node"
