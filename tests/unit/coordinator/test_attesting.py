from typing import Any

from runlog.small_log import NODES, Clerk, blob_id, make_attestation, state_id

from shoal.coordinator.attesting import MOST_REBUILDS, POSITIONS_KEPT, Attesting
from shoal.coordinator.events import FetchBlob
from shoal.runlog.entries import Attestations, Rewind
from shoal.wire.identity import Identity

A, B, C, D = NODES[:4]


class Hall:
    """A run with some seals, and ears."""

    def __init__(self, seals: int = 1) -> None:
        self.clerk = Clerk()
        self.clerk.found()
        self.clerk.join(A, B, C, D)
        self.seals = []
        for _ in range(seals):
            self.clerk.plan(A)
            self.seals.append(self.clerk.seal(A))
        self.ears = Attesting(self.clerk.view)

    def says(self, node: Identity, state: str, at: int | None = None, /, **changes: Any) -> bool:
        where = self.seals[-1] if at is None else at
        word = make_attestation(self.clerk.view, node, where, state, **changes)
        return self.ears.heard(node.node, word) is not None

    def verdict(self, *live: Identity, at: int | None = None) -> Any:
        return self.ears.judge(self.seals[-1] if at is None else at, frozenset(n.node for n in live))


def test_more_than_half_of_the_live_agree() -> None:
    hall = Hall()
    assert hall.verdict(A, B) is None
    hall.says(A, "s")
    assert hall.verdict(A, B) is None and hall.verdict(A, B, C) is None
    assert hall.verdict(A).agreed == state_id("s")
    hall.says(B, "s")
    verdict = hall.verdict(A, B, C)
    assert verdict.agreed == state_id("s") and verdict.dissenters == ()


def test_one_that_spoke_and_went_still_counts() -> None:
    hall = Hall()
    hall.says(A, "s")
    hall.says(B, "t")
    verdict = hall.verdict(A)
    assert verdict is not None and verdict.agreed is None, "one against one"


def test_news_are_told_once() -> None:
    hall = Hall()
    hall.says(A, "s")
    hall.says(B, "s")
    first = hall.verdict(A, B)
    assert len(first.news) == 2
    hall.clerk.append(Attestations(items=first.news))
    assert hall.verdict(A, B).news == ()
    again = Attesting(hall.clerk.view)
    again.heard(A.node, make_attestation(hall.clerk.view, A, hall.seals[0], "s"))
    verdict = again.judge(hall.seals[0], frozenset([A.node]))
    assert verdict is not None and verdict.news == (), "it stands in the log already"


def test_dissenters_are_named() -> None:
    hall = Hall()
    for node, state in ((A, "s"), (B, "s"), (C, "t"), (D, "u")):
        hall.says(node, state)
    verdict = hall.verdict(A, B, C)
    assert verdict.agreed is None, "two of four are no majority"
    hall.says(C, "s")
    verdict = hall.verdict(A, B, C, D)
    assert verdict.agreed == state_id("s") and verdict.dissenters == (D.node,)


def test_one_that_insists_is_not_asked_for_ever() -> None:
    hall = Hall()
    hall.says(A, "s")
    hall.says(B, "s")
    asked = 0
    for _ in range(3 * MOST_REBUILDS):
        hall.says(C, "t")
        asked += len(hall.verdict(A, B, C).dissenters)
    assert asked == MOST_REBUILDS


def test_words_about_what_was_undone_are_not_heard() -> None:
    hall = Hall(2)
    hall.clerk.append(Rewind(to=hall.seals[0], reason="asked"))
    assert not hall.says(A, "s", hall.seals[1])
    assert hall.says(A, "s", hall.seals[0])
    assert not hall.says(A, "s", 1), "no seal stands there"


def test_only_its_own_word_is_heard() -> None:
    hall = Hall()
    word = make_attestation(hall.clerk.view, A, hall.seals[0], "s")
    assert hall.ears.heard(B.node, word) is None
    assert not hall.says(A, "s", node=B.node)


def test_adopted_states_are_heard_but_do_not_vote() -> None:
    hall = Hall()
    assert hall.says(A, "s", how="adopted")
    assert hall.verdict(A) is None and hall.ears.agreed_at(hall.seals[0]) is None


def test_last_agreed_looks_at_the_log() -> None:
    hall = Hall(3)
    assert hall.ears.last_agreed() == 0
    hall.clerk.attest(hall.seals[0], "s", A, B)
    assert hall.ears.last_agreed() == hall.seals[0]
    hall.clerk.attest(hall.seals[1], "s", A)
    hall.clerk.attest(hall.seals[1], "t", B)
    assert hall.ears.last_agreed() == hall.seals[0]
    hall.clerk.attest(hall.seals[1], "s", C)
    assert hall.ears.last_agreed() == hall.seals[1]
    hall.clerk.append(Rewind(to=0, reason="asked"))
    assert hall.ears.last_agreed() == 0


def test_the_snapshot_most_of_those_who_agree_name_is_the_snapshot() -> None:
    hall = Hall()
    good, bad = blob_id("good"), blob_id("bad")
    hall.says(A, "s", snapshot=bad)
    hall.says(B, "s", snapshot=good)
    hall.says(C, "s", snapshot=good)
    agreed = hall.ears.agreed_at(hall.seals[0])
    assert agreed is not None and agreed.snapshot == good
    assert agreed.holders == tuple(sorted((B.node, C.node)))


def test_snapshots_are_fetched_one_at_a_time_until_one_is_saved() -> None:
    hall = Hall()
    at, blob = hall.seals[0], blob_id("good")
    assert hall.ears.fetch_snapshot(at) == [], "nobody has named one"
    hall.says(A, "s", snapshot=blob)
    fetch = hall.ears.fetch_snapshot(at)
    size_bytes = hall.clerk.view.snapshots[0].size_bytes
    assert fetch == [FetchBlob(at, blob, size_bytes, (A.node,), is_state=True)]
    assert hall.ears.asked_for(at, blob) and not hall.ears.asked_for(at, blob_id("other"))
    assert hall.ears.fetch_snapshot(at) == [], "it is on its way"
    assert hall.ears.snapshot_failed(at, blob) == [], "there is no other"
    assert hall.ears.fetch_snapshot(at) == fetch
    hall.ears.snapshot_failed(at, blob)
    hall.clerk.snapshot(at, "s")
    assert hall.ears.fetch_snapshot(at) == [], "it is saved"


def test_a_snapshot_that_others_have_outvoted_gives_way_when_it_fails() -> None:
    hall = Hall()
    at, good, bad = hall.seals[0], blob_id("good"), blob_id("bad")
    hall.says(A, "s", snapshot=bad)
    assert [fetch.blob for fetch in hall.ears.fetch_snapshot(at)] == [bad]
    hall.says(B, "s", snapshot=good)
    hall.says(C, "s", snapshot=good)
    assert [fetch.blob for fetch in hall.ears.snapshot_failed(at, bad)] == [good]


def test_a_false_snapshot_is_never_asked_for_again() -> None:
    hall = Hall()
    at, good, bad = hall.seals[0], blob_id("good"), blob_id("bad")
    for node in (A, B):
        hall.says(node, "s", snapshot=bad)
    hall.says(C, "s", snapshot=good)
    assert [fetch.blob for fetch in hall.ears.fetch_snapshot(at)] == [bad]
    assert [fetch.blob for fetch in hall.ears.snapshot_false(at, bad)] == [good]
    assert hall.ears.snapshot_false(at, good) == [], "nothing is left to ask for"
    hall.says(D, "s", snapshot=bad)
    assert hall.ears.fetch_snapshot(at) == []


def test_memory_is_bounded() -> None:
    hall = Hall(POSITIONS_KEPT + 10)
    for at in hall.seals:
        hall.says(A, "s", at)
    assert hall.ears.agreed_at(hall.seals[0]) is None
    assert hall.ears.agreed_at(hall.seals[-1]) is not None
