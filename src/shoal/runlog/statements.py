"""What nodes may state: the bounds and rules for claims, receipts and attestations.

In flow signed statements of strangers and the view they must fit; out flow opened statements. Invariant: whatever
passes here is bounded in every field, so that no member can bloat the log, count samples that were not its own,
or name a blob that is none.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.runlog import pieces
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import (
    Attestation,
    Claim,
    DataRange,
    Folding,
    Genesis,
    Head,
    Receipt,
    Screening,
    Verdict,
)
from shoal.runlog.work import Planned
from shoal.wire.signed import Signed, parse, parse_again

if TYPE_CHECKING:
    from shoal.runlog.view import Member, RunView, Update

T = TypeVar("T")
MAX_CLAIM_BYTES, MAX_WORD_BYTES, MAX_FOLDING_BYTES = 4096, 1024, 1 << 17
MAX_RANGES, MAX_MERGES, MAX_RECEIPTS = 8, 16, 16
MAX_SCORE = 8_000
OUTCOMES = ("upheld", "forged", "withheld")
SPARE_BYTES = 1 << 16
"""What an update may have beyond eight bytes a parameter: headers, codebooks."""
PRIVATE_BYTES = 12
"""For each parameter: two moments of the inner optimiser, and the residual."""
TOKENS_A_SAMPLE = 1 << 20
"""Where the data has no context length to say."""
_is_hash, _is_node = re.compile("[0-9a-f]{64}").fullmatch, re.compile("[0-9a-f]{40}").fullmatch


def require(holds: bool, otherwise: str, *about: object) -> None:
    """Raise `BadEntry` unless something holds; the text, with what it is about in its braces, completes "entry N ...".
    It is put together only then: a hundred checks are made for each that fails."""
    if not holds:
        raise BadEntry(otherwise.format(*about) if about else otherwise)


def _of_claim(claim: Claim, holds: bool, otherwise: str, *about: object) -> None:
    """The same for what a claim says."""
    if not holds:
        raise BadEntry(f"has a claim of {claim.node[:12]} {otherwise.format(*about)}")


def is_hash(text: str) -> bool:
    return _is_hash(text) is not None


def is_node(text: str) -> bool:
    return _is_node(text) is not None


def open_claim(view: RunView, signed: Signed) -> Claim:
    """The claim, if it may be sealed now. Raises `BadEntry` with the reason otherwise."""
    require(len(signed.payload) <= MAX_CLAIM_BYTES, "has a claim that is too long")
    # The node is named inside the payload; parse it unchecked to learn whose key to check it with.
    claim = parse_again(signed.payload, Claim)
    member = view.members.get(claim.node) if claim else None
    if claim is None or member is None:
        raise BadEntry("has a claim of a node that is not a member")
    if not view.keys[claim.node].signed(signed, Claim, claim.plan):
        raise BadEntry(f"has a claim that {member.node} did not sign")
    planned = _check_place(view, claim, member)
    _check_content(view, claim)
    _check_merges(view, claim)
    _check_data(view, claim, member, planned)
    return claim


def _check_place(view: RunView, claim: Claim, member: Member) -> Planned:
    """This run, work that is open, its round, its base, and a sequence that is new; the work."""
    _of_claim(claim, claim.run == view.run, "for another run")
    _of_claim(claim, claim.sequence > member.last_sequence, "whose sequence was settled before")
    planned = view.planned.get(claim.node, {}).get(claim.plan)
    if planned is None:
        raise BadEntry(f"has a claim of {claim.node[:12]} that is not in an open plan at {claim.plan}")
    _of_claim(claim, claim.round == planned.round, "for round {}, not {}", claim.round, planned.round)
    head = claim.head
    on_chain = 0 <= head.position < view.length and view.hashes[head.position] == head.hash
    _of_claim(claim, on_chain, "who stood on another log")
    _of_claim(claim, claim.base == planned.base, "from another base than {}", planned.base)
    return planned


def _check_content(view: RunView, claim: Claim) -> None:
    """Every field within what the model and the format allow."""
    named = all(map(is_hash, (claim.blob, claim.local_before, claim.local_after, *claim.pieces)))
    _of_claim(claim, named, "with a malformed field")
    _of_claim(claim, pieces.are_sound(claim), "with pieces that cannot be")
    _of_claim(claim, math.isfinite(claim.loss), "with a loss that is no number")
    _of_claim(claim, claim.steps > 0 and claim.samples > 0, "without work")
    _of_claim(claim, claim.steps <= claim.samples, "of {} steps on {} samples", claim.steps, claim.samples)
    numel = view.genesis.layout.numel if view.genesis else 0
    fits = 0 < claim.size_bytes <= 8 * numel + SPARE_BYTES
    _of_claim(claim, fits, "of {} bytes for {} parameters", claim.size_bytes, numel)


def _check_merges(view: RunView, claim: Claim) -> None:
    """Few, of entries that there are, in the order in which they were taken."""
    merges = claim.merges
    ordered = all(
        one.position < two.position and one.step <= two.step for one, two in itertools.pairwise(merges)
    )
    inside = all(0 <= taken.position < view.length and 0 <= taken.step <= claim.steps for taken in merges)
    sound = len(merges) <= MAX_MERGES and ordered and inside
    _of_claim(claim, sound, "with merges that cannot be")


def _check_data(view: RunView, claim: Claim, member: Member, planned: Planned) -> None:
    """Samples that were this node's to train, each counted once, the last of them in this plan."""
    ranges = claim.data
    _of_claim(claim, 0 < len(ranges) <= MAX_RANGES, "with {} data ranges", len(ranges))
    _of_claim(claim, all(part.count > 0 for part in ranges), "with an empty data range")
    counted = sum(part.count for part in ranges)
    _of_claim(claim, claim.samples == counted, "of {} samples on {} counters", claim.samples, counted)
    ordered = all(_end(one) <= two.start for one, two in itertools.pairwise(ranges))
    _of_claim(claim, ordered and ranges[0].start >= member.counted_to, "that counts samples again")
    # A round that is planned again and again pushes its first plan out of the latest assignments.
    whole = (*member.assigned, planned.data)
    own = all(any(_inside(part, mine) for mine in whole) for part in ranges)
    _of_claim(claim, own and _inside(ranges[-1], planned.data), "on samples that were not assigned to it")
    tokens = claim.samples * most_tokens(view)
    _of_claim(claim, 0 <= claim.tokens <= tokens, "of {} tokens on {} samples", claim.tokens, claim.samples)


def most_bytes(genesis: Genesis) -> int:
    """The largest blob that a member may push: an update, a snapshot, or a private state that is to be audited."""
    return max(PRIVATE_BYTES * genesis.layout.numel, genesis.snapshot_bytes) + SPARE_BYTES


def most_tokens(view: RunView) -> int:
    """How many tokens a sample may have."""
    context = view.genesis.manifest.context if view.genesis else 0
    return context or TOKENS_A_SAMPLE


def open_receipts(view: RunView, claim: Claim, receipts: tuple[Signed, ...]) -> tuple[NodeId, ...]:
    """Who holds the claim's blob or pieces of it, by their signatures; the author's own word does not count."""
    return tuple(dict.fromkeys(receipt.holder for receipt in read_receipts(view, claim, receipts)))


def read_receipts(view: RunView, claim: Claim, receipts: tuple[Signed, ...]) -> tuple[Receipt, ...]:
    """The receipts for a claim's blob or pieces of it, each of another holder or for another piece. Raises `BadEntry`
    if one does not hold, or there is none."""
    require(len(receipts) <= MAX_RECEIPTS, "has {} storage receipts for one update", len(receipts))
    found: dict[tuple[NodeId, BlobId], Receipt] = {}
    for signed in receipts:
        receipt = open_receipt(view, signed)
        fits = receipt is not None and pieces.names_it(claim, receipt) and receipt.holder != claim.node
        if receipt is None or not fits or (receipt.holder, receipt.blob) in found:
            raise BadEntry(f"has a storage receipt for {claim.blob[:12]} that does not hold")
        found[receipt.holder, receipt.blob] = receipt
    require(bool(found), "accepts {:.12}, which nobody but its author holds", claim.blob)
    return tuple(found.values())


def open_receipt(view: RunView, signed: Signed) -> Receipt | None:
    """A receipt of this run that a member or the coordinator signed, or None."""
    receipt = _parse_small(signed, Receipt)
    keys = view.keys.get(receipt.holder) if receipt is not None and receipt.run == view.run else None
    return receipt if keys is not None and keys.promised(signed, Receipt) else None


def open_attestation(view: RunView, signed: Signed) -> Attestation:
    """A member's attestation of a position of this log. Raises `BadEntry`."""
    word = _parse_small(signed, Attestation)
    member = view.members.get(word.node) if word else None
    if word is None or member is None or not _says(view, word, signed):
        raise BadEntry("has an attestation that no member signed")
    known = 0 <= word.at.position < view.length and view.hashes[word.at.position] == word.at.hash
    require(known and word.run == view.run, "has an attestation of another log")
    sound = is_hash(word.state) and (word.snapshot is None or is_hash(word.snapshot))
    finite = word.validation is None or math.isfinite(word.validation)
    require(sound and finite and word.how in ("folded", "adopted"), "has a malformed attestation")
    return word


def open_folding(view: RunView, signed: Signed) -> Folding:
    """A folder's word on shards of the seal whose digests are out. Raises `BadEntry`."""
    word = parse(signed.payload, Folding) if len(signed.payload) <= MAX_FOLDING_BYTES else None
    member = view.members.get(word.node) if word else None
    step = view.unsettled
    if word is None or step is None or member is None or not _says(view, word, signed):
        raise BadEntry("has a folder's word that no member signed, or that no seal waits for")
    here = word.at.position == step.position and word.at.hash == view.hashes[step.position]
    require(here and word.run == view.run, "has a folder's word on another seal")
    numbers = [number for number, _, _ in word.items]
    own = [number for number, shard in enumerate(step.shards) if word.node in shard.folders]
    fair = numbers == sorted(set(numbers)) and set(numbers) <= set(own)
    require(fair, "has a word of {:.12} on shards that it was not drawn for", word.node)
    for number, blob, size_bytes in word.items:
        sound = is_hash(blob) and 0 < size_bytes <= step.shards[number].most_bytes
        require(sound, "has a word of {:.12} on a digest that cannot be", word.node)
    return word


def open_screening(view: RunView, signed: Signed) -> Screening:
    """A member's scores for every update of a seal that stands. Raises `BadEntry`."""
    word = parse(signed.payload, Screening) if len(signed.payload) <= MAX_FOLDING_BYTES else None
    member = view.members.get(word.node) if word else None
    if word is None or member is None or not _says(view, word, signed):
        raise BadEntry("has a screening that no member signed")
    updates = _updates_at(view, word.run, word.at)
    bounded = all(0 <= score <= MAX_SCORE for score in word.scores)
    require(bounded and len(word.scores) == len(updates), "has a screening of other updates than a seal's")
    return word


def open_verdict(view: RunView, signed: Signed) -> Verdict:
    """A member's verdict on another's claim in a seal that stands. Raises `BadEntry`."""
    word = _parse_small(signed, Verdict)
    member = view.members.get(word.node) if word else None
    if word is None or member is None or not _says(view, word, signed):
        raise BadEntry("has a verdict that no member signed")
    claims = [(update.claim.node, update.claim.sequence) for update in _updates_at(view, word.run, word.at)]
    require((word.author, word.sequence) in claims, "has a verdict on a claim that its seal does not have")
    require(word.author != word.node, "has a verdict of {:.12} on itself", word.node)
    finite = math.isfinite(word.distance) and math.isfinite(word.tolerance)
    sound = finite and (word.replayed is None or is_hash(word.replayed))
    require(sound and word.outcome in OUTCOMES, "has a malformed verdict")
    return word


def _says(view: RunView, word: Attestation | Folding | Screening | Verdict, signed: Signed) -> bool:
    """Whether the node that a word names has signed it, with a key that counts for where the word stands."""
    return view.keys[word.node].signed(signed, type(word), word.at.position)


def _updates_at(view: RunView, run: RunId, at: Head) -> Sequence[Update]:
    step = view.step_at(at.position)
    if run != view.run or step is None or view.hashes[at.position] != at.hash:
        raise BadEntry("has an audit of a seal that does not stand in this log")
    return step.updates


def _parse_small(signed: Signed, kind: type[T]) -> T | None:
    return parse_again(signed.payload, kind) if len(signed.payload) <= MAX_WORD_BYTES else None


def _end(part: DataRange) -> int:
    return part.start + part.count


def _inside(part: DataRange, whole: DataRange) -> bool:
    return whole.start <= part.start and _end(part) <= _end(whole)
