"""Keys at the door and at the desk: who speaks for whom, and what becomes of work when that changes."""

from typing import Any

from runlog.small_log import COORDINATOR, NODES, RUN, Clerk, make_offer, small_recipe

from shoal.coordinator.events import Arrived, Dismiss, RevokeAsked, Ticked
from shoal.coordinator.keyring import Shown, leads_to, own_keys, read_keys, revocation_in
from shoal.runlog.entries import Left, Revoked, Rotated, Seal
from shoal.runlog.keys import Revocation, news_in, rotate, shown_line
from shoal.runlog.view import RunView
from shoal.wire.identity import Identity, Signer
from shoal.wire.messages import PROTOCOL, Hello, Proof, Refuse
from shoal.wire.signed import sign

from .desk import Desk, open_round

A, B = NODES[:2]


def hello(identity: Identity, *, hybrid: bool = False, signer: Signer | None = None, **more: Any) -> Hello:
    proof = Proof(run=RUN, coordinator=COORDINATOR.node, nonce=b"n")
    return Hello(
        protocol=PROTOCOL,
        run=RUN,
        public=identity.first.public,
        token="",
        name="",
        address="",
        length=0,
        proof=sign(signer or (identity.hybrid if hybrid else identity), proof),
        hybrid=identity.first.hybrid.public if hybrid else b"",
        line=shown_line(identity, hybrid=hybrid),
        **more,
    )


def successor(old: Identity, *, revokes: bool = False) -> Identity:
    return rotate(old, b"new".ljust(32, b"."), revokes=revokes)[0]


def view_of(*nodes: Any, hybrid: bool = False) -> Clerk:
    clerk = Clerk(identity=COORDINATOR.hybrid if hybrid else COORDINATOR)  # type: ignore[arg-type]
    clerk.found(small_recipe(**({"identity": {"signatures": "hybrid"}} if hybrid else {})))
    clerk.join(*nodes)
    return clerk


def code_of(shown: Shown | Refuse) -> str:
    assert isinstance(shown, Refuse)
    return shown.code


# --- at the door -----------------------------------------------------------------------------------------


def test_a_hybrid_run_asks_for_a_hybrid_key_and_takes_the_nodes_own_only() -> None:
    view = view_of(hybrid=True).view
    plain = read_keys(hello(A), view)
    assert code_of(plain) == "SH-KEY-05" and isinstance(plain, Refuse) and plain.hybrid
    shown = read_keys(hello(A, hybrid=True), view)
    assert isinstance(shown, Shown) and shown.speaker == shown.public == A.hybrid.public
    foreign = Hello(**{**_fields(hello(A, hybrid=True)), "hybrid": B.hybrid.public})
    assert code_of(read_keys(foreign, view)) == "SH-KEY-05"


def _fields(value: Hello) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def test_a_member_shows_how_its_key_changed_and_must_sign_with_the_new_one() -> None:
    clerk, new = view_of(A), successor(A)
    shown = read_keys(hello(new), clerk.view)
    assert isinstance(shown, Shown) and shown.speaker == new.public and len(shown.line) == 1
    clerk.append(Rotated(node=A.node, line=shown.line))
    again = read_keys(hello(new), clerk.view)
    assert isinstance(again, Shown) and again.speaker == new.public and again.line == ()
    assert code_of(read_keys(hello(A), clerk.view)) == "SH-KEY-03", "with the old key nobody gets in"


def test_who_lost_its_keys_is_told_so() -> None:
    clerk = view_of(A)
    clerk.append(Revoked(node=A.node, reason="x"))
    assert code_of(read_keys(hello(A), clerk.view)) == "SH-KEY-04"
    assert code_of(read_keys(hello(successor(A)), clerk.view)) == "SH-KEY-04"


def test_only_the_holder_of_the_current_key_can_revoke_it_at_the_door() -> None:
    clerk = view_of(A, B)
    word = Revocation(run=RUN, node=A.node, reason="lost")
    assert revocation_in(hello(A, revoke=sign(A, word)), clerk.view) is not None
    assert revocation_in(hello(A, revoke=sign(B, word)), clerk.view) is None
    assert revocation_in(hello(B, revoke=sign(B, word)), clerk.view) is None
    assert revocation_in(hello(NODES[3], revoke=sign(NODES[3], word)), clerk.view) is None
    assert revocation_in(hello(A), clerk.view) is None


# --- at the desk -----------------------------------------------------------------------------------------


def arrive(desk: Desk, identity: Identity) -> None:
    line = news_in(shown_line(identity, hybrid=False), desk.view.keys[identity.node].current)
    first = identity.first.public
    desk.step(Arrived(node=identity.node, public=first, name="n", address="h:1", length=0, line=line))


def test_a_claim_that_is_kept_survives_a_change_of_its_nodes_key() -> None:
    desk = open_round(A, B)
    desk.offer(A)
    new = successor(A)
    arrive(desk, new)
    assert [type(body) for body in desk.appended()] == [Rotated]
    arrive(desk, new)
    assert desk.appended() == [], "once"
    desk.offer(B)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    assert len(seal.accepted) == 2 and seal.rejected == ()
    desk.beat(new, B)
    assert desk.offer(new).kept and desk.offer(B).kept, "and the new key speaks in the next round"
    desk.check()


def test_what_a_stolen_key_signed_is_dropped_before_it_is_sealed() -> None:
    desk = open_round(A, B)
    desk.offer(A)
    arrive(desk, successor(A, revokes=True))
    desk.offer(B)
    desk.tick(20)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    assert len(seal.accepted) == 1 and "did not sign" in seal.rejected[0].reason
    desk.check()


def test_a_claim_whose_receipts_are_of_a_revoked_node_is_dropped_too() -> None:
    desk = open_round(A, B, NODES[2])
    desk.offer(A, make_offer(desk.view, A, B))
    desk.step(RevokeAsked(B.node, "cheated"))
    assert [type(body) for body in desk.appended()[:2]] == [Revoked, Left]
    told = desk.wanted(Dismiss)
    assert told and told[0].node == B.node and told[0].refuse.code == "SH-KEY-04"
    desk.offer(NODES[2])
    desk.tick(20)
    desk.check()
    seals = [step for step in desk.view.path if step.updates]
    assert [update.claim.node for update in seals[0].updates] == [NODES[2].node]


def test_revoking_twice_or_a_stranger_changes_nothing() -> None:
    desk = open_round(A, B)
    desk.step(RevokeAsked(NODES[3].node, "who"))
    assert desk.appended() == []
    desk.step(RevokeAsked(A.node, "one"))
    length = desk.view.length
    desk.step(RevokeAsked(A.node, "two"))
    assert desk.view.length == length
    desk.check()


def test_a_coordinator_with_a_new_key_says_so_first_of_all() -> None:
    desk = open_round(A, B)
    new = rotate(COORDINATOR, b"c".ljust(32, b"."), revokes=False)[0]
    assert leads_to(desk.view, new) and leads_to(desk.view, COORDINATOR) and not leads_to(desk.view, A)
    desk.identity = new
    desk.restart()
    desk.step(Ticked())
    assert isinstance(desk.appended()[0], Rotated)
    desk.check()
    assert not leads_to(desk.view, COORDINATOR), "the old key writes no more"
    assert set(own_keys(new)) >= {COORDINATOR.public, new.public}


def test_nobody_leads_a_run_that_is_not_there() -> None:
    assert not leads_to(RunView(), COORDINATOR)
