"""Words about states, the snapshots they name, and what happens when a state or an update is in doubt."""

from typing import Any

import pytest
from runlog.small_log import (
    COORDINATOR,
    NODES,
    OTHER_RUN,
    blob_id,
    make_offer,
    state_id,
)

from shoal.coordinator.events import (
    Append,
    BlobFetched,
    FetchBlob,
    Prune,
    RewindAsked,
)
from shoal.coordinator.missed import PATIENCE_LEASES
from shoal.runlog.entries import (
    Attestations,
    Head,
    Rewind,
    Snapshot,
)
from shoal.wire.messages import (
    Rebuild,
    Stuck,
)

from .desk import LIE, fetched, open_round, sealed_once, snapshot_of

A, B, C, D = NODES[:4]


# --- attestations -----------------------------------------------------------------------------------------


def test_a_majority_of_the_live_is_entered() -> None:
    desk = sealed_once(A, B, C)
    desk.attest(A, "s")
    assert desk.wanted(Append) == [], "one of three"
    desk.attest(B, "s")
    body = desk.appended()[0]
    assert isinstance(body, Attestations) and len(body.items) == 2
    desk.attest(C, "s")
    body = desk.appended()[0]
    assert isinstance(body, Attestations) and len(body.items) == 1, "only what is new"
    assert set(desk.view.attested[desk.view.at]) == {A.node, B.node, C.node}
    desk.attest(C, "s")
    assert desk.appended() == []
    desk.check()


def test_a_dissenter_is_told_to_rebuild() -> None:
    desk = sealed_once(A, B, C)
    desk.attest(C, "other")
    desk.attest(A, "s")
    desk.attest(B, "s")
    assert desk.sent(C, Rebuild) == [Rebuild(at=desk.view.at)]
    assert desk.sent(A, Rebuild) == []
    desk.attest(C, "s")
    assert desk.sent(C, Rebuild) == [], "it has rebuilt its state and says so"


def test_without_a_possible_majority_the_run_is_rewound() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.attest(A, "s1")
    desk.attest(B, "s1")
    desk.beat(A, B)
    desk.seal_round(A, B)
    desk.attest(A, "s2")
    desk.attest(B, "other")
    rewind = next(body for body in desk.appended() if isinstance(body, Rewind))
    assert rewind.to == first and "no majority" in rewind.reason and desk.view.at == first
    desk.check()


@pytest.mark.parametrize(
    "changes",
    [{"run": OTHER_RUN}, {"at": Head(1, "0")}, {"node": B.node}, {"how": "adopted"}],
    ids=["another run", "another log", "another's name", "adopted"],
)
def test_words_that_do_not_count(changes: dict[str, Any]) -> None:
    desk = sealed_once(A)
    desk.attest(A, "s", **changes)
    assert desk.appended() == [] and desk.view.attested == {}


def test_snapshots_are_fetched_once_and_entered() -> None:
    desk = sealed_once(A, B)
    at, blob = desk.view.at, snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    holders = tuple(sorted((A.node, B.node)))
    size_bytes = desk.view.genesis.snapshot_bytes if desk.view.genesis else 0
    assert desk.wanted(FetchBlob) == [FetchBlob(at, blob, size_bytes, holders, is_state=True)]
    desk.attest(B, "s", snapshot=blob)
    assert desk.wanted(FetchBlob) == []
    desk.step(fetched(at, blob))
    assert desk.appended()[0] == Snapshot(
        at=at, state=state_id("s"), blob=blob, size_bytes=64, holders=holders
    )
    assert desk.wanted(Prune) and desk.view.best_start().at == at
    desk.step(fetched(at, blob))
    assert desk.appended() == []
    desk.check()


def test_a_snapshot_that_could_not_be_fetched_is_asked_for_again() -> None:
    desk = sealed_once(A, B)
    at, blob = desk.view.at, snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    desk.step(BlobFetched(at=at, blob=blob, size_bytes=None))
    assert desk.appended() == [] and desk.view.at == at
    desk.attest(B, "s", snapshot=blob)
    assert len(desk.wanted(FetchBlob)) == 1


@pytest.mark.parametrize(
    ("there", "real"),
    [(True, True), (True, False), (False, False)],
    ids=["another state", "no state", "nothing"],
)
def test_one_liar_cannot_put_its_blob_in_place_of_the_snapshot(there: bool, real: bool) -> None:
    """The state's hash is right, the blob is not: three know better than one."""
    desk = sealed_once(A, B, C)
    at, good = desk.view.at, snapshot_of("s")
    # Of two blobs that one node each names the greater is tried first; this one is.
    desk.attest(A, "s", snapshot=LIE)
    desk.attest(B, "s", snapshot=good)
    assert [fetch.blob for fetch in desk.wanted(FetchBlob)] == [LIE]
    desk.attest(C, "s", snapshot=good)
    assert desk.wanted(FetchBlob) == [], "one at a time"
    desk.step(fetched(at, LIE, "another state" if real else None, there=there))
    assert [fetch.blob for fetch in desk.wanted(FetchBlob)] == [good]
    assert desk.appended() == [] and desk.view.at == at
    desk.step(fetched(at, good))
    assert [saved.blob for saved in desk.view.snapshots[1:]] == [good]
    assert desk.view.snapshots[-1].holders == tuple(sorted((B.node, C.node)))
    desk.check()


def test_a_false_snapshot_is_not_entered_though_everyone_names_it() -> None:
    """The state's hash decides, not the number of those who name a blob."""
    desk = sealed_once(A, B)
    at = desk.view.at
    for node in (A, B):
        desk.attest(node, "s", snapshot=LIE)
    desk.step(fetched(at, LIE, "another state"))
    assert desk.appended() == [] and desk.wanted(FetchBlob) == [] and desk.view.best_start().at == 0
    desk.attest(B, "s", snapshot=LIE)
    assert desk.wanted(FetchBlob) == [], "a blob that was found false is not fetched again"
    desk.attest(B, "s", snapshot=snapshot_of("s"))
    assert [fetch.blob for fetch in desk.wanted(FetchBlob)] == [snapshot_of("s")]
    desk.step(fetched(at, snapshot_of("s")))
    assert desk.view.best_start().at == at
    desk.check()


def test_a_snapshot_named_by_those_who_disagree_is_not_fetched() -> None:
    desk = sealed_once(A, B, C)
    desk.attest(C, "other", snapshot=LIE)
    desk.attest(A, "s")
    desk.attest(B, "s")
    assert desk.wanted(FetchBlob) == []


def test_a_blob_that_nobody_asked_for_changes_nothing() -> None:
    desk = sealed_once(A, B)
    at, length = desk.view.at, desk.view.length
    for blob in (LIE, snapshot_of("s")):
        desk.step(fetched(at, blob))
        desk.step(fetched(at, blob, there=False))
        desk.step(fetched(9999, blob, there=False))
    assert desk.view.length == length and desk.view.at == at


def test_a_snapshot_nobody_has_does_not_undo_the_round() -> None:
    """A node names a snapshot that it does not have, then another: the first fetch fails, and that is all."""
    desk = sealed_once(A)
    at = desk.view.at
    desk.attest(A, "s", snapshot=blob_id("never made"))
    desk.attest(A, "s", snapshot=snapshot_of("s"))
    desk.step(BlobFetched(at=at, blob=blob_id("never made"), size_bytes=None))
    assert desk.view.at == at and not any(isinstance(body, Rewind) for body in desk.appended())


# --- trouble ----------------------------------------------------------------------------------------------


def test_stuck_nodes_make_the_coordinator_fetch_and_then_rewind() -> None:
    desk = sealed_once(A, B)
    at = desk.view.at
    update = desk.view.path[0].updates[0].claim
    patience_s = PATIENCE_LEASES * desk.recipe.membership.lease_s
    desk.say(B, Stuck(at=at, blob=update.blob, seconds=patience_s - 1))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at, blob=blob_id("not of this seal"), seconds=patience_s))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at + 1, blob=update.blob, seconds=patience_s))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at, blob=update.blob, seconds=patience_s))
    fetch = desk.wanted(FetchBlob)[0]
    assert (fetch.at, fetch.blob, fetch.size_bytes) == (at, update.blob, update.size_bytes)
    assert fetch.holders == (COORDINATOR.node, update.node)
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=100))
    assert desk.view.at == at, "here it is: nodes can fetch it from here"
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=None))
    rewind = next(body for body in desk.appended() if isinstance(body, Rewind))
    assert rewind.to == 0 and "nobody has update" in rewind.reason
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=None))
    assert not any(isinstance(body, Rewind) for body in desk.appended()), "once is enough"
    desk.check()


def test_an_update_whose_holders_are_gone_is_looked_for_when_their_leases_are_over() -> None:
    desk = open_round(A, B)
    desk.offer(A, make_offer(desk.view, A, B))
    desk.offer(B, make_offer(desk.view, B, COORDINATOR))
    at, lease_s = desk.view.at, desk.recipe.membership.lease_s
    desk.arrive(C)
    by_node = {update.claim.node: update.claim for update in desk.view.path[0].updates}
    desk.say(C, Stuck(at=at, blob=by_node[A.node].blob, seconds=1.0))
    desk.tick(lease_s / 2)
    assert desk.wanted(FetchBlob) == [], "A and B may only be slow"
    desk.beat(C)
    desk.tick(lease_s / 2)
    (fetch,) = desk.wanted(FetchBlob)
    assert fetch.blob == by_node[A.node].blob and fetch.is_missed
    desk.tick(lease_s / 2)
    assert desk.wanted(FetchBlob) == [], "once for each report"
    desk.step(BlobFetched(at=at, blob=fetch.blob, size_bytes=None))
    assert any(isinstance(body, Rewind) for body in desk.appended())
    desk.say(C, Stuck(at=at, blob=fetch.blob, seconds=1e6))
    assert desk.wanted(FetchBlob) == [], "nothing is left of that seal"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1e300, 1e300])
def test_a_lie_about_being_stuck_costs_a_fetch_and_nothing_else(seconds: float) -> None:
    desk = sealed_once(A, B)
    at, update = desk.view.at, desk.view.path[0].updates[0].claim
    for where in (at, -1, 2**63, at + 1):
        desk.say(B, Stuck(at=where, blob=update.blob, seconds=seconds))
        assert desk.wanted(Append) == [] and desk.view.at == at


def test_a_lost_update_in_the_middle_rewinds_to_just_before_it() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    second = desk.seal_round(A, B)
    update = desk.view.path[1].updates[0].claim
    desk.step(BlobFetched(at=second, blob=update.blob, size_bytes=None))
    assert desk.view.at == first


def test_a_rewind_that_was_asked_for() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert desk.offer(A).kept
    desk.step(RewindAsked(first, "diverged"))
    assert Rewind(to=first, reason="diverged") in desk.appended() and desk.view.at == first
    length = desk.view.length
    for to in (first, 99, -1, 1):
        desk.step(RewindAsked(to, "nonsense"))
        assert not any(isinstance(body, Rewind) for body in desk.appended())
    assert desk.view.length >= length
    desk.check()
