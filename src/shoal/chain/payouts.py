"""Where a node wants its pay: an address on the chain, signed with the node's own key.

In flow a node's identity and an address; out flows a line of text that the coordinator keeps. Invariant: nobody but the
node can name its address, and of several statements the one with the highest number counts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.chain.signing import read_address
from shoal.wire.identity import Identity, node_id
from shoal.wire.signed import Signed, open_signed, parse, sign

PREFIX = "shoalpay1-"
KEY = "payout."
MAX_TEXT = 1000


class Payout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: RunId
    public: bytes
    address: str
    number: int = 0


def state_payout(identity: Identity, run: RunId, address: str, number: int = 0) -> str:
    """The line. Raises SH-CHAIN-03 for what is no address."""
    word = Payout(run=run, public=identity.public, address=read_address(address), number=number)
    return PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(sign(identity, word))).decode()


def read_payout(text: str, run: RunId) -> Payout | None:
    """What a node signed for this run, or None."""
    if not text.startswith(PREFIX) or len(text) > MAX_TEXT:
        return None
    try:
        signed = parse(base64.urlsafe_b64decode(text.removeprefix(PREFIX)), Signed)
    except (binascii.Error, ValueError):
        return None
    unchecked = parse(signed.payload, Payout) if signed else None
    word = open_signed(signed, Payout, unchecked.public) if signed and unchecked else None
    return word if word is not None and word.run == run else None


def keep_payout(store: LogStore, run: RunId, text: str) -> Payout:
    """Keep a node's statement, unless a later one is kept. Raises SH-CHAIN-03 for what is none, and where another
    address stays."""
    word = read_payout(text.strip(), run)
    if word is None:
        raise ShoalError(
            "SH-CHAIN-03",
            "this is no statement of an address for this run",
            "copy the whole line that `shoal chain payout` printed on the node",
        )
    read_address(word.address)
    known = read_payout(
        store.kept(run, KEY + node_id(word.public)).get(KEY + node_id(word.public), b"").decode(), run
    )
    if known is None or word.number > known.number:
        store.keep(run, KEY + node_id(word.public), text.strip().encode())
    elif known.address != word.address:
        raise ShoalError(
            "SH-CHAIN-03",
            f"{node_id(word.public)[:12]} has stated {known.address}, by a statement that is not older",
            f"to move, state it again on the node with --number {known.number + 1}",
        )
    return word


def kept_payouts(store: LogStore, run: RunId) -> Mapping[NodeId, str]:
    """Addresses by node, as far as nodes have stated them."""
    words = [read_payout(text.decode("utf-8", "replace"), run) for text in store.kept(run, KEY).values()]
    return {node_id(word.public): word.address for word in words if word is not None}
