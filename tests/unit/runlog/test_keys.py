"""Keys in the log: hybrid runs take both signatures or none, keys hand over and are revoked, and all check it."""

from typing import Any

import msgspec
import pytest

from shoal.runlog.chain import BadEntry, Equivocation, make_link
from shoal.runlog.entries import Accepted, Attestations, Joined, Left, Revoked, Rotated, Stopped
from shoal.runlog.evidence import encode_proof, read_proof
from shoal.runlog.keys import MAX_LINE, Revocation, Succession, news_in, rotate, shown_line
from shoal.runlog.view import verify_log
from shoal.wire.identity import Identity, Signer
from shoal.wire.signed import digest, sign

from .small_log import (
    BATCH,
    COORDINATOR,
    NODES,
    RUN,
    STEPS,
    Clerk,
    accepted,
    genesis_of,
    make_attestation,
    make_claim,
    make_offer,
    make_receipt,
    small_recipe,
)

A, B = NODES[:2]
HYBRID = {"identity": {"signatures": "hybrid"}}


def started(*nodes: Any, hybrid: bool = False) -> Clerk:
    clerk = Clerk(identity=COORDINATOR.hybrid if hybrid else COORDINATOR)  # type: ignore[arg-type]
    clerk.found(small_recipe(**(HYBRID if hybrid else {})))
    clerk.join(*nodes)
    return clerk


def successor(old: Identity, name: bytes = b"new", *, revokes: bool = False) -> Identity:
    return rotate(old, name.ljust(32, b"."), revokes=revokes)[0]


def rotated(identity: Identity, current: bytes, *, hybrid: bool = False) -> Rotated:
    return Rotated(node=identity.node, line=news_in(shown_line(identity, hybrid=hybrid), current))


def refused(clerk: Clerk, body: Any) -> str:
    with pytest.raises(BadEntry) as why:
        clerk.view.apply(clerk.make(body))
    return str(why.value)


# --- hybrid runs -----------------------------------------------------------------------------------------


def test_a_hybrid_log_holds_and_is_longer_by_its_signatures() -> None:
    clerk = started(A.hybrid, B.hybrid, hybrid=True)
    clerk.plan(A, B)  # type: ignore[arg-type]
    first = clerk.seal(A.hybrid, B.hybrid)  # type: ignore[arg-type]
    clerk.attest(first, "s", A.hybrid, B.hybrid)  # type: ignore[arg-type]
    view, finding = verify_log(clerk.entries, RUN)
    assert finding is None and view.length == 6
    assert all(len(entry) > 3373 for entry in clerk.entries)


@pytest.mark.parametrize("signer", [A, B.hybrid])
def test_in_a_hybrid_run_a_claim_without_both_signatures_is_refused(signer: Signer) -> None:
    clerk = started(A.hybrid, hybrid=True)
    clerk.plan(A)
    claim = make_claim(clerk.view, A)
    receipts = (make_receipt(COORDINATOR, claim.blob),)
    item = Accepted(claim=sign(signer, claim), weight=STEPS * BATCH, receipts=receipts)
    assert "did not sign" in refused(clerk, clerk.seal_body(accepted=(item,)))


def test_in_a_hybrid_run_an_attestation_without_both_signatures_is_refused() -> None:
    clerk = started(A.hybrid, hybrid=True)
    clerk.plan(A)
    at = clerk.seal(A.hybrid)  # type: ignore[arg-type]
    words = Attestations(items=(make_attestation(clerk.view, A, at, "s"),))
    assert "no member signed" in refused(clerk, words)
    clerk.attest(at, "s", A.hybrid)  # type: ignore[arg-type]


def test_in_a_hybrid_run_an_entry_with_one_signature_is_refused_by_whoever_reads_the_log() -> None:
    clerk = started(A.hybrid, hybrid=True)
    clerk.identity = COORDINATOR
    link = clerk.make(Left(node=A.node, reason="r"))
    _, finding = verify_log([*clerk.entries, link.encoded], RUN)
    assert finding is not None and "not signed by the run's coordinator" in finding.what


def test_keys_are_of_the_kind_that_the_recipe_asks_for() -> None:
    clerk = started(hybrid=True)
    assert "a key of 32 bytes" in refused(clerk, Joined(node=A.node, public=A.public))
    plain = started()
    assert "where this run's have 32" in refused(plain, Joined(node=A.node, public=A.hybrid.public))
    for recipe, founder in ((small_recipe(**HYBRID), COORDINATOR), (small_recipe(), COORDINATOR.hybrid)):
        link = make_link(founder, RUN, Clerk().view.head, 1, 1000, genesis_of(recipe, founder))  # type: ignore[arg-type]
        with pytest.raises(BadEntry, match="another kind of key"):
            Clerk().view.apply(link)


# --- keys hand over --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_new_key_speaks_for_the_same_member_from_its_entry_on(hybrid: bool) -> None:
    old: Any = A.hybrid if hybrid else A
    clerk = started(old, hybrid=hybrid)
    clerk.plan(A)
    clerk.seal(old)
    new = successor(A)
    speaker: Any = new.hybrid if hybrid else new
    clerk.append(rotated(new, old.public, hybrid=hybrid))
    assert speaker.node == A.node and clerk.view.public_of(A.node) == speaker.public
    clerk.plan(A)
    assert "did not sign" in refused(clerk, clerk.seal_body(old)), "for work that was planned after it"
    clerk.seal(speaker)
    assert clerk.view.members[A.node].updates == 2, "one member all the time"
    assert verify_log(clerk.entries, RUN)[1] is None


def test_work_begun_before_counts_under_the_old_key_unless_that_is_in_wrong_hands() -> None:
    for revokes in (False, True):
        clerk = started(A)
        clerk.plan(A)
        body = clerk.seal_body(A)
        clerk.append(rotated(successor(A, revokes=revokes), A.public))
        if revokes:
            assert "did not sign" in refused(clerk, body)
        else:
            clerk.append(body)


def test_receipts_of_a_replaced_key_still_count_and_those_of_a_revoked_one_do_not() -> None:
    for revokes in (False, True):
        clerk = started(A, B)
        clerk.plan(A)
        offer = make_offer(clerk.view, A, B)
        body = clerk.seal_body(
            accepted=(Accepted(claim=offer.claim, weight=STEPS * BATCH, receipts=offer.receipts),)
        )
        clerk.append(rotated(successor(B, revokes=revokes), B.public))
        if revokes:
            assert "storage receipt" in refused(clerk, body)
        else:
            clerk.append(body)


def test_two_changes_arrive_as_one_entry_and_a_third_leads_on() -> None:
    clerk = started(A)
    second = successor(successor(A), b"newer")
    clerk.append(rotated(second, A.public))
    assert clerk.view.public_of(A.node) == second.public
    third = successor(second, b"newest")
    assert len(rotated(third, second.public).line) == 1, "what the log has is not said again"
    clerk.append(rotated(third, second.public))
    assert clerk.view.public_of(A.node) == third.public


def test_nobody_else_can_hand_a_key_over() -> None:
    clerk = started(A, B)
    thief = Identity(b"thief".ljust(32, b"."))
    word = Succession(node=A.node, old=digest(A.public), new=thief.public)
    both = {"by both": (A, thief), "by the thief": (thief, thief), "by another": (B, thief)}
    for who, (old, new) in both.items():
        body = Rotated(node=A.node, line=((sign(old, word), sign(new, word)),))
        if who != "by both":
            assert "without the word of its current key" in refused(clerk, body), who
    unasked = Rotated(node=A.node, line=((sign(A, word), sign(A, word)),))
    assert "did not agree to it" in refused(clerk, unasked)
    other = msgspec.structs.replace(word, node=B.node)
    assert "without the word" in refused(
        clerk, Rotated(node=B.node, line=((sign(A, other), sign(thief, other)),))
    )
    assert "0 changes" in refused(clerk, Rotated(node=A.node, line=()))
    assert "who never joined" in refused(clerk, rotated(successor(NODES[3]), NODES[3].public))


def test_an_old_handover_cannot_be_played_again() -> None:
    clerk = started(A)
    new = successor(A)
    again = rotated(new, A.public)
    clerk.append(again)
    assert "without the word of its current key" in refused(clerk, again)


def test_a_line_that_is_shown_is_bounded_and_takes_hostile_bytes() -> None:
    assert news_in((b"", b"\xc1", b"x" * 100), A.public) == ()
    line = A
    for number in range(MAX_LINE + 1):
        line = successor(line, b"%d" % number)
    assert len(news_in(shown_line(line, hybrid=False), A.public)) == MAX_LINE
    hybrid = sum(map(len, shown_line(line, hybrid=True)[:MAX_LINE]))
    assert hybrid + 6000 < 64 << 10, "a hello with it is as long as a stranger's may be"


# --- the coordinator's own key ---------------------------------------------------------------------------


def test_the_coordinators_new_key_signs_from_its_own_entry_on() -> None:
    clerk = started(A)
    new = successor(COORDINATOR)
    body = rotated(new, COORDINATOR.public)
    assert "not signed by the run's coordinator" in refused(clerk, body), "the new key itself must sign it"
    clerk.identity = new
    clerk.append(body)
    clerk.plan(A)
    clerk.append(clerk.seal_body(accepted=(accepted(clerk.view, A, new),)))
    clerk.append(Stopped(reason="enough"))
    assert verify_log(clerk.entries, RUN)[1] is None
    clerk.identity = COORDINATOR
    link = clerk.make(Attestations(items=()))
    assert verify_log([*clerk.entries, link.encoded], RUN)[1] is not None


def test_a_proof_of_two_entries_holds_under_a_replaced_key_and_not_under_a_revoked_one() -> None:
    for revokes in (False, True):
        clerk = started(A, B)
        known, other = (
            clerk.links[1],
            make_link(COORDINATOR, RUN, clerk.links[0].head, 1, 5, Left(node=A.node, reason="x")),
        )
        proof = encode_proof(Equivocation(known.encoded, other.encoded))
        clerk.identity = successor(COORDINATOR, revokes=revokes)
        clerk.append(rotated(clerk.identity, COORDINATOR.public))
        assert (read_proof(proof, RUN, *clerk.view.coordinator_keys) is None) == revokes


# --- revocation ------------------------------------------------------------------------------------------


def test_after_a_revocation_nothing_that_the_key_signed_is_taken() -> None:
    clerk = started(A, B)
    clerk.plan(A, B)
    body, own = clerk.seal_body(A, B), Revocation(run=RUN, node=A.node, reason="lost")
    clerk.append(Revoked(node=A.node, reason="lost", word=sign(A, own)))
    assert clerk.view.public_of(A.node) is None
    assert "did not sign" in refused(clerk, body)
    assert "whose keys were revoked" in refused(clerk, Joined(node=A.node, public=A.public))
    assert "who has none" in refused(clerk, Revoked(node=A.node, reason="again"))
    assert "without the word" in refused(clerk, rotated(successor(A), A.public))
    clerk.seal(B)
    assert verify_log(clerk.entries, RUN)[1] is None


def test_the_organiser_may_revoke_and_nobody_elses_word_passes_for_the_members() -> None:
    clerk = started(A, B)
    own = Revocation(run=RUN, node=A.node, reason="lost")
    false = [
        sign(B, own),
        sign(A, msgspec.structs.replace(own, node=B.node)),
        sign(A, msgspec.structs.replace(own, reason="something else")),
        sign(A, msgspec.structs.replace(own, run="another")),
    ]
    for word in false:
        assert "not its own" in refused(clerk, Revoked(node=A.node, reason="lost", word=word))
    clerk.append(Revoked(node=A.node, reason="cheated"))
    assert clerk.view.public_of(A.node) is None and clerk.view.public_of(B.node) == B.public
    assert "who has none" in refused(clerk, Revoked(node=COORDINATOR.node, reason="x"))


def test_a_replaced_key_cannot_revoke_the_one_that_followed_it() -> None:
    clerk = started(A)
    clerk.append(rotated(successor(A), A.public))
    word = sign(A, Revocation(run=RUN, node=A.node, reason="lost"))
    assert "not its own" in refused(clerk, Revoked(node=A.node, reason="lost", word=word))
