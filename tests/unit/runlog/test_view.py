"""What may stand in a log and what may not; and that a refused entry changes nothing."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.runlog import view as views
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import (
    Accepted,
    Assignment,
    Attestations,
    Body,
    DataRange,
    Digests,
    Head,
    Joined,
    Left,
    Rejected,
    Rewind,
    Snapshot,
    Stopped,
)
from shoal.runlog.statements import open_claim
from shoal.runlog.steps import PackedUpdates
from shoal.runlog.view import KEPT_SNAPSHOTS, head_of
from shoal.wire.signed import Signed, sign

from .small_log import (
    BATCH,
    COORDINATOR,
    NODES,
    OTHER_RUN,
    STEPS,
    STRANGER,
    Clerk,
    accepted,
    blob_id,
    genesis_of,
    make_attestation,
    make_claim,
    make_offer,
    make_receipt,
    small_recipe,
    whole_story,
)

A, B, C, D = NODES[:4]


def _planned() -> Clerk:
    """Three members, two of them with work in round 0."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    clerk.plan(A, B)
    return clerk


def _member(start: int, **changes: Any) -> Assignment:
    work = Assignment(node=A.node, data=DataRange(start, 6), steps=3, batch=2)
    return msgspec.structs.replace(work, **changes)


def _plan(clerk: Clerk, *members: Assignment, **changes: Any) -> Body:
    return clerk.plan_body(**{"members": members, **changes})


def _seal(clerk: Clerk, *items: Accepted, **changes: Any) -> Body:
    return clerk.seal_body(**{"accepted": items, **changes})


def _claimed(clerk: Clerk, **changes: Any) -> Body:
    return _seal(clerk, accepted(clerk.view, A, **changes))


def _received(clerk: Clerk, *receipts: Signed) -> Body:
    return _seal(clerk, msgspec.structs.replace(accepted(clerk.view, A), receipts=receipts))


def _own_blob(clerk: Clerk) -> Any:
    return make_claim(clerk.view, A).blob


REFUSED: dict[str, tuple[str, Callable[[Clerk], Body]]] = {
    "second genesis": ("second genesis", lambda c: genesis_of(small_recipe())),
    "member under another id": ("not its key's hash", lambda c: Joined(node=D.node, public=C.public)),
    "a stranger leaves": ("never joined", lambda c: Left(node=D.node, reason="")),
    "plan without a step": ("above 0", lambda c: _plan(c, _member(100), rate=0.0)),
    "plan of a step back": ("above 0", lambda c: _plan(c, _member(100), rate=-0.5)),
    "plan of too long a step": ("at most 1", lambda c: _plan(c, _member(100), rate=1.0000001)),
    "plan of an endless step": ("at most 1", lambda c: _plan(c, _member(100), rate=float("inf"))),
    "plan of a step that is no number": ("above 0", lambda c: _plan(c, _member(100), rate=float("nan"))),
    "plan of another step": ("another rate", lambda c: _plan(c, _member(100), rate=0.5)),
    "plan of a past round": ("plans round", lambda c: _plan(c, _member(100), round=-1)),
    "plan of a future round": ("plans round", lambda c: _plan(c, _member(100), round=1)),
    "plan of no fragment": ("unknown fragments", lambda c: _plan(c, _member(100), fragments=())),
    "plan of an unknown fragment": ("fragment", lambda c: _plan(c, _member(100), fragments=(0, 2))),
    "plan of a negative fragment": ("fragment", lambda c: _plan(c, _member(100), fragments=(-1,))),
    "plan of one fragment twice": ("fragment", lambda c: _plan(c, _member(100), fragments=(0, 0))),
    "plan with a member twice": ("twice", lambda c: _plan(c, _member(100), _member(200))),
    "plan for a stranger": ("not a member", lambda c: _plan(c, _member(100, node=D.node))),
    "plan on used samples": ("overlap", lambda c: _plan(c, _member(11))),
    "plan on each other's samples": (
        "overlap",
        lambda c: _plan(c, _member(100), _member(105, node=B.node)),
    ),
    "plan of other samples than steps": (
        "samples",
        lambda c: _plan(c, _member(100, data=DataRange(100, 7))),
    ),
    "plan of no work": (
        "less than one step",
        lambda c: _plan(c, _member(100, steps=0, data=DataRange(100, 0))),
    ),
    "plan of negative work": ("less than one step", lambda c: _plan(c, _member(100, steps=-3, batch=-2))),
    "plan of no codec": ("encoded by no codec", lambda c: _plan(c, _member(100, choice=-1))),
    "plan of a codec too many": ("encoded by no codec", lambda c: _plan(c, _member(100, choice=9))),
    "plan of spare work only": ("less than one step", lambda c: _plan(c, _member(100, steps=0, spare=3))),
    "seal of another round": ("seals round", lambda c: _seal(c, accepted(c.view, A), round=1)),
    "seal of nothing": ("no update", lambda c: _seal(c)),
    "seal of a node twice": (
        "twice",
        lambda c: _seal(c, accepted(c.view, A), accepted(c.view, A, sequence=7)),
    ),
    "seal without weight": (
        "another weight than its own",
        lambda c: _seal(c, msgspec.structs.replace(accepted(c.view, A), weight=0)),
    ),
    "seal with negative weight": (
        "another weight than its own",
        lambda c: _seal(c, msgspec.structs.replace(accepted(c.view, A), weight=-1)),
    ),
    "seal with more weight than samples": (
        "another weight than its own",
        lambda c: _seal(c, msgspec.structs.replace(accepted(c.view, A), weight=STEPS * BATCH + 1)),
    ),
    "seal that rejects a stranger": (
        "not a member",
        lambda c: _seal(c, accepted(c.view, A), rejected=(Rejected(node=D.node, sequence=0, reason=""),)),
    ),
    "seal of fewer fragments": ("fragment", lambda c: _seal(c, accepted(c.view, A), fragments=(0,))),
    "seal of unknown fragments": ("fragment", lambda c: _seal(c, accepted(c.view, A), fragments=(0, 9))),
    "seal of no fragments": ("fragment", lambda c: _seal(c, accepted(c.view, A), fragments=())),
    "seal of a fragment twice": ("fragment", lambda c: _seal(c, accepted(c.view, A), fragments=(0, 1, 1))),
    "claim of a stranger": ("not a member", lambda c: _seal(c, accepted(c.view, D))),
    "claim with a foreign signature": (
        "did not sign",
        lambda c: _seal(
            c,
            Accepted(
                claim=sign(STRANGER, make_claim(c.view, A)),
                weight=1,
                receipts=(make_receipt(COORDINATOR, _own_blob(c)),),
            ),
        ),
    ),
    "claim that is noise": (
        "not a member",
        lambda c: _seal(c, Accepted(claim=Signed(b"\xc1", b""), weight=1, receipts=())),
    ),
    "claim for another run": ("another run", lambda c: _claimed(c, run=OTHER_RUN)),
    "claim for another round": ("for round 1", lambda c: _claimed(c, round=1)),
    "claim with a used sequence": ("settled before", lambda c: _claimed(c, sequence=-1)),
    "claim of a plan that is not": ("not in an open plan", lambda c: _claimed(c, plan=3)),
    "claim of a member without work": ("not in an open plan", lambda c: _seal(c, accepted(c.view, C))),
    "claim on another log": ("another log", lambda c: _claimed(c, head=Head(4, "0" * 64))),
    "claim on a future log": ("another log", lambda c: _claimed(c, head=Head(99, c.view.head.hash))),
    "claim on a negative head": ("another log", lambda c: _claimed(c, head=Head(-1, c.view.head.hash))),
    "claim from an old base": ("another base", lambda c: _claimed(c, base=((0, -1), (1, 0)))),
    "claim of fewer fragments": ("another base", lambda c: _claimed(c, base=((0, 0),))),
    "claim of no steps": ("without work", lambda c: _claimed(c, steps=0)),
    "claim of no samples": ("without work", lambda c: _claimed(c, samples=0, data=())),
    "claim of no bytes": ("of 0 bytes", lambda c: _claimed(c, size_bytes=0)),
    "claim of more samples than counters": ("counters", lambda c: _claimed(c, samples=7)),
    "claim of others' samples": ("not assigned", lambda c: _claimed(c, data=(DataRange(6, 6),))),
    "claim of others' samples first": (
        "counts samples again",
        lambda c: _claimed(c, samples=12, data=(DataRange(6, 6), DataRange(0, 6))),
    ),
    "claim of samples nobody planned": (
        "not assigned",
        lambda c: _claimed(c, samples=10**9 + 6, data=(DataRange(0, 6), DataRange(10**6, 10**9))),
    ),
    "claim of the same samples twice": (
        "samples",
        lambda c: _claimed(c, samples=12, data=(DataRange(0, 6), DataRange(0, 6))),
    ),
    "claim with a negative range": (
        "data range",
        lambda c: _claimed(c, samples=6, data=(DataRange(0, -6), DataRange(0, 12))),
    ),
    "claim of negative tokens": ("tokens", lambda c: _claimed(c, tokens=-1)),
    "nobody holds it": ("nobody but its author", lambda c: _received(c)),
    "the author holds it": ("receipt", lambda c: _received(c, make_receipt(A, _own_blob(c)))),
    "a stranger holds it": ("receipt", lambda c: _received(c, make_receipt(STRANGER, _own_blob(c)))),
    "a receipt for another blob": ("receipt", lambda c: _received(c, make_receipt(B, blob_id("x")))),
    "a receipt for another run": (
        "receipt",
        lambda c: _received(c, make_receipt(B, _own_blob(c), run=OTHER_RUN)),
    ),
    "a receipt signed by another": (
        "receipt",
        lambda c: _received(c, make_receipt(B, _own_blob(c), holder=C.node)),
    ),
    "one receipt twice": (
        "receipt",
        lambda c: _received(c, make_receipt(B, _own_blob(c)), make_receipt(B, _own_blob(c))),
    ),
    "noise for a receipt": ("receipt", lambda c: _received(c, Signed(b"", b""))),
    "digests of no seal": ("digests of a seal", lambda c: Digests(seal=0, items=())),
    "attestation of a stranger": (
        "no member signed",
        lambda c: Attestations(items=(make_attestation(c.view, STRANGER, 0, "s"),)),
    ),
    "attestation in another's name": (
        "no member signed",
        lambda c: Attestations(items=(make_attestation(c.view, B, 0, "s", node=A.node),)),
    ),
    "attestation of another log": (
        "another log",
        lambda c: Attestations(items=(make_attestation(c.view, A, 0, "s", at=Head(1, "0")),)),
    ),
    "attestation of the future": (
        "another log",
        lambda c: Attestations(items=(make_attestation(c.view, A, 0, "s", at=Head(50, "0")),)),
    ),
    "attestation for another run": (
        "another log",
        lambda c: Attestations(items=(make_attestation(c.view, A, 0, "s", run=OTHER_RUN),)),
    ),
    "a good attestation and a bad one": (
        "no member signed",
        lambda c: Attestations(
            items=(make_attestation(c.view, A, 0, "s"), make_attestation(c.view, STRANGER, 0, "s"))
        ),
    ),
    "snapshot of what is no state": (
        "does not stand",
        lambda c: Snapshot(at=1, state="s", blob=blob_id(1), size_bytes=1, holders=()),
    ),
    "rewind to what is no state": ("does not stand", lambda c: Rewind(to=1, reason="")),
    "rewind to the future": ("does not stand", lambda c: Rewind(to=99, reason="")),
    "stop that rejects a stranger": (
        "not a member",
        lambda c: Stopped(reason="", rejected=(Rejected(node=D.node, sequence=0, reason=""),)),
    ),
    "stop that says too much": (
        "too long",
        lambda c: Stopped(reason="", rejected=(Rejected(node=A.node, sequence=0, reason="x" * 201),)),
    ),
    "seal that says too much": (
        "too long",
        lambda c: _seal(
            c, accepted(c.view, A), rejected=(Rejected(node=B.node, sequence=0, reason="x" * 201),)
        ),
    ),
    "member with a long name": (
        "too long",
        lambda c: Joined(node=D.node, public=D.public, name="x" * 201),
    ),
    "a long goodbye": ("too long", lambda c: Left(node=A.node, reason="x" * 201)),
}


def _picture(clerk: Clerk) -> dict[str, Any]:
    return copy.deepcopy(vars(clerk.view))


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_stand_is_refused_and_changes_nothing(case: str) -> None:
    why, make = REFUSED[case]
    clerk = _planned()
    link = clerk.make(make(clerk))
    before = _picture(clerk)
    with pytest.raises(BadEntry, match=why):
        clerk.view.apply(link)
    assert _picture(clerk) == before


def test_a_seal_without_a_plan_is_refused() -> None:
    clerk = _planned()
    seal = clerk.seal_body(A)
    clerk.append(Rewind(to=0, reason="asked"))
    with pytest.raises(BadEntry, match="not planned"):
        clerk.append(seal)


def test_after_the_stop_only_words_about_states_may_come() -> None:
    clerk = whole_story()
    at = clerk.view.at
    clerk.attest(at, "last", A)
    clerk.snapshot(at, "last", A.node)
    bodies = (Stopped(reason="again"), Left(node=A.node, reason=""), clerk.plan_body(A))
    for body in bodies:
        with pytest.raises(BadEntry, match="after the run was stopped"):
            clerk.append(body)


def test_a_bad_last_stretch_can_be_undone_after_the_stop() -> None:
    clerk = whole_story()
    kept = clerk.view.kept_states()[0].at
    clerk.append(Rewind(to=kept, reason="the last state is no good"))
    assert clerk.view.at == kept and clerk.view.stopped is not None
    with pytest.raises(BadEntry, match="after the run was stopped"):
        clerk.plan(A)


def test_the_stop_settles_claims() -> None:
    clerk = _planned()
    clerk.append(Stopped(reason="enough", rejected=(Rejected(node=A.node, sequence=3, reason="late"),)))
    assert clerk.view.members[A.node].last_sequence == 3 and clerk.view.plan is None


def test_a_term_never_falls() -> None:
    clerk = _planned()
    clerk.term = 5
    clerk.append(Rewind(to=0, reason="asked"))
    clerk.term = 4
    with pytest.raises(BadEntry, match="term 4 after term 5"):
        clerk.append(Stopped(reason=""))


def test_a_claim_may_answer_an_earlier_plan_of_the_round() -> None:
    clerk = _planned()
    offer = make_offer(clerk.view, A)
    clerk.plan(B)
    assert open_claim(clerk.view, offer.claim).node == A.node
    assert clerk.view.planned.keys() == {A.node, B.node}


def test_a_seal_settles_sequences_both_ways() -> None:
    clerk = _planned()
    clerk.append(
        clerk.seal_body(A, rejected=(Rejected(node=B.node, sequence=4, reason="late"),)),
    )
    members = clerk.view.members
    assert [members[n.node].last_sequence for n in (A, B, C)] == [0, 4, -1]
    clerk.plan(A, B)
    with pytest.raises(BadEntry, match="settled before"):
        clerk.append(clerk.seal_body(**{"accepted": (accepted(clerk.view, B, sequence=4),)}))


def test_rewind_undoes_the_path_and_makes_every_older_claim_stale() -> None:
    clerk = _planned()
    first = clerk.seal(A, B)
    clerk.plan(A)
    second = clerk.seal(A)
    clerk.plan(A)
    stale = make_offer(clerk.view, A)
    before = clerk.view.round
    clerk.append(Rewind(to=first, reason="asked"))
    view = clerk.view
    assert view.at == first and not view.stands(second) and view.round == before
    assert view.plan is None and not view.planned
    clerk.plan(A)
    with pytest.raises(BadEntry, match="not in an open plan"):
        open_claim(view, stale.claim)
    forged = make_claim(view, A, base=((0, 2), (1, 2)))
    with pytest.raises(BadEntry, match="another base"):
        open_claim(view, sign(A, forged))


def test_reading_the_path() -> None:
    clerk = _planned()
    first = clerk.seal(A, B)
    clerk.plan(A)
    second = clerk.seal(A)
    view = clerk.view
    assert view.next_step(0) == view.path[0] and view.next_step(first) == view.path[1]
    assert view.next_step(second) is None and view.next_step(2) is None
    assert [view.index_of(at) for at in (0, first, second, 99)] == [None, 0, 1, None]
    assert view.stands(0) and view.stands(second) and not view.stands(first + 1)
    assert head_of(view, first).hash == clerk.links[first].hash
    assert view.public_of(COORDINATOR.node) == COORDINATOR.public
    assert view.public_of(A.node) == A.public and view.public_of(D.node) is None


def test_saved_states_and_the_blobs_they_need() -> None:
    clerk = _planned()
    seals = []
    for _ in range(4):
        seals.append(clerk.seal(A))
        clerk.snapshot(seals[-1], "s", A.node)
        clerk.plan(A)
    view = clerk.view
    kept = view.kept_states()
    assert [saved.at for saved in kept] == seals[-KEPT_SNAPSHOTS:]
    assert view.best_start().at == seals[-1]
    updates = [step.updates[0].claim.blob for step in view.path]
    needed = view.needed_blobs()
    assert {saved.blob for saved in kept} <= needed and blob_id("data") in needed
    assert updates[-1] in needed and updates[0] not in needed
    for undone in (0, seals[0], seals[1]):
        with pytest.raises(BadEntry, match="not kept"):
            clerk.append(Rewind(to=undone, reason="too far back"))
    clerk.append(Rewind(to=seals[2], reason="asked"))
    assert view.best_start().at == seals[2]
    assert [saved.at for saved in view.kept_states()] == seals[1:3]
    assert updates[2] in view.needed_blobs()


def test_what_comes_after_rewinds_is_packed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "STEPS_OPEN", 1)
    clerk = Clerk()
    clerk.found()
    clerk.join(A)

    def rounds(count: int) -> None:
        for _ in range(count):
            clerk.plan(A)
            clerk.snapshot(clerk.seal(A), "s", A.node)

    rounds(8)
    view = clerk.view
    for _ in range(4):
        clerk.append(Rewind(to=view.kept_states()[0].at, reason="asked"))
    assert all(isinstance(step.updates, PackedUpdates) for step in view.path)
    rounds(8)
    kinds = [isinstance(step.updates, PackedUpdates) for step in view.path]
    assert kinds == [True] * (len(kinds) - KEPT_SNAPSHOTS) + [False] * KEPT_SNAPSHOTS


def test_joining_again_keeps_what_was_settled() -> None:
    clerk = _planned()
    clerk.seal(A, B)
    clerk.append(Left(node=A.node, reason="night"))
    assert not clerk.view.members[A.node].present
    clerk.join(A)
    member = clerk.view.members[A.node]
    assert member.present and member.last_sequence == 0


def test_the_first_plan_begins_the_clock() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    assert clerk.view.began_ms == 0
    position = clerk.plan(A)
    assert clerk.view.began_ms == clerk.links[position].entry.time_ms
    clerk.plan(A)
    assert clerk.view.began_ms == clerk.links[position].entry.time_ms


def test_deep_nesting_reads_the_same_on_every_stack() -> None:
    """A hostile member must not be able to sign a claim that some machines can read and others cannot."""
    clerk = _planned()
    claim = make_claim(clerk.view, A)
    payload = bytearray(msgspec.msgpack.encode(claim))
    fields = payload[:3] if payload[0] == 0xDE else payload[:1]
    assert fields[0] == 0xDE, "a map of sixteen and more fields"
    payload[1:3] = (int.from_bytes(payload[1:3]) + 1).to_bytes(2)
    payload += msgspec.msgpack.encode("later") + b"\x91" * 700 + b"\x90"
    signed = Signed(bytes(payload), A.sign("Claim", bytes(payload)))

    def judged(depth: int) -> str:
        if depth:
            return judged(depth - 1)
        try:
            return open_claim(clerk.view, signed).node
        except BadEntry as error:
            return str(error)

    assert judged(0) == judged(400)
