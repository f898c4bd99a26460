"""Rules for entries about keys: who may found, join, hand over and revoke with which.

In flow a view and a body; out flows nothing, or `BadEntry` with the reason. Invariant: a run whose recipe asks for
hybrid signatures has hybrid keys from its first entry on, for its coordinator and for every member.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Genesis, Joined, Revoked, Rotated
from shoal.runlog.keys import MAX_KEY_WORD_BYTES, Revocation, open_line
from shoal.runlog.statements import require
from shoal.wire.identity import is_hybrid
from shoal.wire.signed import is_signed, parse

if TYPE_CHECKING:
    from shoal.runlog.view import RunView

MAX_REASON = 200


def check_founder(genesis: Genesis) -> None:
    """The coordinator's key is of the kind that the recipe asks for."""
    asked = _signatures_in(genesis.recipe) == "hybrid"
    require(
        is_hybrid(genesis.coordinator) == asked, "is signed with another kind of key than its recipe asks for"
    )


def _signatures_in(recipe: str) -> str:
    """What kind of signatures a recipe in a log asks for."""
    try:
        values = json.loads(recipe)
    except (ValueError, RecursionError):
        return ""  # Whoever wants to train by it finds out.
    identity = values.get("identity") if isinstance(values, dict) else None
    return str(identity.get("signatures", "")) if isinstance(identity, dict) else ""


def check_key(view: RunView, joined: Joined) -> None:
    """A newcomer's key is of the run's kind, and nobody comes back whose keys were revoked."""
    founder = view.genesis.coordinator if view.genesis else b""
    alike = len(joined.public) == len(founder)
    require(
        alike,
        f"names a member with a key of {len(joined.public)} bytes, where this run's have {len(founder)}",
    )
    known = view.keys.get(joined.node)
    require(known is None or bool(known.current), f"lets {joined.node[:12]} in, whose keys were revoked")


def check_rotated(view: RunView, rotated: Rotated) -> None:
    known = view.keys.get(rotated.node)
    if known is None:
        raise BadEntry(f"changes the key of {rotated.node[:12]}, who never joined")
    open_line(rotated.line, rotated.node, known.current)


def check_revoked(view: RunView, revoked: Revoked) -> None:
    """A member's own word, or the coordinator's decision; of a member whose keys still count."""
    known = view.keys.get(revoked.node)
    if known is None or revoked.node not in view.members or not known.current:
        raise BadEntry(f"revokes the keys of {revoked.node[:12]}, who has none")
    require(revoked.node != view.coordinator, "revokes the keys of the coordinator")
    require(len(revoked.reason) <= MAX_REASON, "has a reason that is too long")
    if revoked.word is None:
        return
    short = len(revoked.word.payload) <= MAX_KEY_WORD_BYTES
    word = parse(revoked.word.payload, Revocation) if short else None
    own = word is not None and (word.run, word.node, word.reason) == (view.run, revoked.node, revoked.reason)
    signed = own and is_signed(revoked.word, Revocation, known.current)  # A replaced key has no say in this.
    require(signed, f"revokes the keys of {revoked.node[:12]} by a word that is not its own")
