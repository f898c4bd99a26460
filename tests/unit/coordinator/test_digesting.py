"""The coordinator waits for folders' words, and not for ever."""

from __future__ import annotations

from typing import Any

from runlog.small_log import NODES, blob_id, make_attestation, small_recipe

from shoal.coordinator.events import Archive, BlobFetched, FetchBlob, StopAsked
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Digests, Folding, Plan, Rewind, Stopped
from shoal.runlog.view import head_of
from shoal.wire.identity import Identity
from shoal.wire.messages import Attest, Folded, Stuck
from shoal.wire.signed import sign

from .desk import Desk, members, open_round, stay

A, B, C = NODES[:3]
DEADLINE_S = 30.0


def _recipe(**changes: Any) -> Any:
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": 3},
        "codec": {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        "digest": {"kind": "int8", "folders": 3, "shards": 4, "when": "always", "deadline_s": DEADLINE_S},
    }
    return small_recipe(strategy=strategy, membership=members(3), **changes)


def _sealed(**changes: Any) -> Desk:
    desk = open_round(A, B, C, recipe=_recipe(**changes))
    desk.seal_round(A, B, C)
    assert desk.view.unsettled is not None and desk.view.plan is None, "no round before the digests"
    return desk


def _word(desk: Desk, node: Identity, said: str = "right") -> Folded:
    step = desk.view.path[-1]
    items = tuple((n, blob_id(said, n), 10) for n in range(len(step.shards)))
    at = head_of(desk.view, step.position)
    return Folded(word=sign(node, Folding(run=desk.view.run, node=node.node, at=at, items=items)))


def test_the_next_round_follows_the_last_word() -> None:
    desk = _sealed()
    desk.say(A, _word(desk, A))
    assert desk.appended() == [] and desk.machine.waiting_for == "the digests of 1 of 3 folders"
    desk.say(B, _word(desk, B))
    desk.say(B, _word(desk, B))
    assert desk.appended() == []
    desk.say(C, _word(desk, C))
    digests, plan = desk.appended()
    assert isinstance(digests, Digests) and isinstance(plan, Plan) and plan.folders == 3
    assert len(digests.items) == 4 and digests.reason == "3 of 3 folders; 4 digests"
    assert all(item.folders == (A.node, B.node, C.node) for item in digests.items)
    desk.say(C, _word(desk, C))
    assert desk.appended() == [], "settled"
    desk.check()


def test_a_folder_that_is_gone_is_not_waited_for() -> None:
    desk = _sealed()
    for node in (A, B):
        desk.say(node, _word(desk, node))
    stay(desk, 8, A, B)
    assert desk.view.unsettled is None and not desk.view.path[-1].folded_by_all


def test_a_folder_that_stays_silent_is_waited_for_until_the_deadline() -> None:
    desk = _sealed()
    desk.say(A, _word(desk, A))
    stay(desk, DEADLINE_S - 2, A, B, C)
    assert desk.view.unsettled is not None
    stay(desk, 3, A, B, C)
    step = desk.view.path[-1]
    assert step.settled and step.folded_by_all == (0, 1, 2, 3), "one of three is not enough"
    digests = next(body for body in map(_body, desk.entries) if isinstance(body, Digests))
    assert digests.reason == "1 of 3 folders in 30 s; 0 digests, everybody folds 4 shards"


def _body(encoded: bytes) -> Any:
    return read_link(encoded).entry.body


def test_a_dissent_is_in_the_log_and_everybody_folds() -> None:
    desk = _sealed()
    for node, said in ((A, "right"), (B, "right"), (C, "wrong")):
        desk.say(node, _word(desk, node, said))
    digests = next(body for body in desk.appended() if isinstance(body, Digests))
    assert len(digests.words) == 3 and digests.items == ()
    desk.check()


def test_words_are_each_nodes_own_first_and_of_this_seal() -> None:
    desk = _sealed()
    desk.say(A, _word(desk, B))
    assert desk.machine.waiting_for != "the digests of 2 of 3 folders"
    old = _word(desk, C)
    for node in (A, B, C):
        desk.say(node, _word(desk, node))
    desk.beat(A, B, C)
    desk.seal_round(A, B, C)
    desk.say(C, old)
    desk.say(A, _word(desk, A))
    desk.say(A, _word(desk, A, "changed its mind"))
    assert desk.machine.waiting_for == "the digests of 1 of 3 folders"
    for node in (B, C):
        desk.say(node, _word(desk, node))
    assert not desk.view.path[-1].folded_by_all, "the first word counts"


def test_after_a_restart_the_words_are_heard_again() -> None:
    desk = _sealed()
    desk.say(A, _word(desk, A))
    desk.restart()
    assert desk.view.unsettled is not None
    desk.arrive(A, B, C)
    for node in (A, B, C):
        desk.say(node, _word(desk, node))
    assert desk.view.unsettled is None and not desk.view.path[-1].folded_by_all
    desk.check()


def test_a_run_that_is_stopped_settles_first() -> None:
    desk = _sealed()
    desk.say(A, _word(desk, A))
    desk.step(StopAsked("enough"))
    digests, stopped = desk.appended()
    assert isinstance(digests, Digests) and isinstance(stopped, Stopped)
    assert digests.items == () and len(digests.words) == 1


def test_only_adopted_words_count_where_it_was_adopted() -> None:
    desk = _sealed()
    at = desk.view.at
    for node in (A, B, C):
        desk.say(node, Attest(attestation=make_attestation(desk.view, node, at, "s", how="adopted")))
    assert not desk.view.attested, "nobody can have a state that the log does not define yet"
    for node in (A, B, C):
        desk.say(node, _word(desk, node))
    for node in (A, B, C):
        desk.say(node, Attest(attestation=make_attestation(desk.view, node, at, "s")))
    assert not desk.view.attested, "nobody folded it all"
    for node in (A, B, C):
        desk.say(node, Attest(attestation=make_attestation(desk.view, node, at, "s", how="adopted")))
    assert set(desk.view.attested[at]) == {A.node, B.node, C.node}


def test_the_archive_keeps_what_a_replay_needs() -> None:
    desk = _sealed()
    assert desk.wanted(Archive) == []
    for node in (A, B, C):
        desk.say(node, _word(desk, node))
    (archive,) = desk.wanted(Archive)
    assert {blob for blob, _, _ in archive.updates} == {blob_id("right", n) for n in range(4)}
    desk = _sealed()
    desk.step(StopAsked("enough"))
    (archive,) = desk.wanted(Archive)
    assert {blob for blob, _, _ in archive.updates} == {u.claim.blob for u in desk.view.path[-1].updates}


def test_a_digest_that_nobody_has_is_fetched_and_then_undone() -> None:
    desk = _sealed()
    at = desk.view.at
    for node in (A, B, C):
        desk.say(node, _word(desk, node))
    lost = blob_id("right", 2)
    desk.say(A, Stuck(at=at, blob=lost, seconds=1e6))
    (fetch,) = desk.wanted(FetchBlob)
    assert fetch.blob == lost and set(fetch.holders) == {A.node, B.node, C.node}
    desk.step(BlobFetched(at=at, blob=lost, size_bytes=None))
    rewind = next(body for body in desk.appended() if isinstance(body, Rewind))
    assert rewind.to == 0 and "nobody has digest" in rewind.reason
