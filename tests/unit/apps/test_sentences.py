"""Every kind of entry is told in a sentence that says who, what and why."""

from __future__ import annotations

from typing import get_args

import pytest
from runlog.small_log import NODES, RUN, blob_id, genesis_of, small_recipe

from shoal.apps.api.diary import Diary, describe
from shoal.apps.api.sentences import entry_sentence
from shoal.runlog.entries import (
    Attestations,
    Audits,
    Ban,
    Body,
    Digests,
    Funded,
    Graft,
    Head,
    Joined,
    Left,
    Plan,
    PlannedRegion,
    Regions,
    Rejected,
    Revoked,
    Rewind,
    Rotated,
    Screening,
    Seal,
    Snapshot,
    Stopped,
    Verdict,
)
from shoal.runlog.keys import rotate
from shoal.wire.signed import Signed, sign

A, B = NODES[:2]
NAMES = {A.node: "ada", B.node: "bob"}
HEAD = Head(7, "h" * 64)
REFUSED = Rejected(node=B.node, sequence=1, reason="too long")
DAY_MS = 1_800_000_000_000


def _verdict(outcome: str) -> Audits:
    word = Verdict(run=RUN, node=A.node, at=HEAD, author=B.node, sequence=3, outcome=outcome)
    return Audits(verdicts=(sign(A, word),))


SCREENED = Audits(screenings=(sign(A, Screening(run=RUN, node=A.node, at=HEAD, scores=(100, 4200))),))
TOLD: list[tuple[Body, str, str]] = [
    (genesis_of(small_recipe()), "info", "The run begins, with 16 parameters."),
    (Joined(node=A.node, public=A.public, name="ada"), "info", f"ada ({A.node[:8]}) joined."),
    (Left(node=B.node, reason="night"), "warning", f"bob ({B.node[:8]}) left."),
    (
        Plan(round=4, step=0, members=(), deadline_ms=1, fragments=(0,), reason="late work"),
        "info",
        "Round 4 is planned for 0 nodes.",
    ),
    (
        Seal(round=4, fragments=(0,), accepted=(), rejected=(REFUSED,), reason="1 of 2"),
        "warning",
        f"Round 4 is sealed with 0 updates. Rejected: bob ({B.node[:8]}): too long.",
    ),
    (Digests(seal=9, items=(), reason="nobody agreed"), "info", "0 shards of the seal at 9 were folded by a few."),
    (Attestations(items=()), "info", "0 nodes attested the state."),
    (
        Snapshot(at=9, state="s", blob=blob_id("s"), size_bytes=2048, holders=()),
        "info",
        "The state at 9 is saved (2.0 kB).",
    ),
    (Graft(parent=HEAD, blob=blob_id("g"), size_bytes=2048), "info", "News of the parent run came in, 2.0 kB."),
    (Rewind(to=3, reason="a blob is lost"), "warning", "The run goes back to its state at 3."),
    (Stopped(reason="done"), "info", "The run is over."),
    (Funded(add_micro=2_500_000, reason="more"), "info", "The run's budget grows by 2.500000 credits."),
    (_verdict("upheld"), "info", "again, and came to the same."),
    (_verdict("forged"), "error", "again, and came to something else: it is forged."),
    (_verdict("withheld"), "warning", "again, and was not shown the state that it began from."),
    (SCREENED, "info", "screened 2 updates of the seal at 7; the oddest is 4.2 off."),
    (Audits(verdicts=(Signed(payload=b"?", signature=b""),)), "info", "A verdict came that cannot be read."),
    (
        Ban(node=B.node, until_ms=DAY_MS, reason="forged work"),
        "error",
        f"bob ({B.node[:8]}) may not take part until 2027-01-15 08:00 UTC.",
    ),
    (Ban(node=B.node, until_ms=2**53, reason=""), "error", "until 9999-12-31"),
    (Rotated(node=B.node, line=()), "info", f"Another key speaks for bob ({B.node[:8]}) from here on."),
    (Revoked(node=B.node, reason="lost"), "warning", "any more, by the organiser's word."),
    (
        Regions(items=(PlannedRegion(number=3, hub=B.node, members=(A.node, B.node)),), reason="near"),
        "info",
        f"The pool's machines are 1 region: region 3 of 2 machines, hub bob ({B.node[:8]}).",
    ),
    (Ban(node=B.node, until_ms=0, reason="a mistake"), "info", f"bob ({B.node[:8]}) may take part again."),
]  # fmt: skip


@pytest.mark.parametrize(("body", "level", "words"), TOLD, ids=lambda value: type(value).__name__)
def test_an_entry_is_told(body: Body, level: str, words: str) -> None:
    told = entry_sentence(body, NAMES)
    assert words in told.text and told.level == level
    assert told.reason == getattr(body, "reason", "")
    event, fields = describe(body)
    assert event == told.kind and fields.get("reason", told.reason) == told.reason


@pytest.mark.parametrize("kind", get_args(Body), ids=lambda kind: kind.__name__)
def test_every_kind_of_entry_is_told(kind: type[Body]) -> None:
    assert any(isinstance(body, kind) for body, *_ in TOLD), f"tell people what {kind.__name__} means"


def test_a_key_given_up_as_stolen_is_a_warning_and_the_coordinators_is_said_to_be_its_own() -> None:
    handover = rotate(B, bytes(32), revokes=True)[1].plain
    told = entry_sentence(Rotated(node=B.node, line=(handover,)), NAMES)
    assert told.level == "warning" and told.text.endswith("given up as compromised.") and told.node == B.node
    own = entry_sentence(Rotated(node=B.node, line=(handover,)), {})
    assert "for the coordinator" in own.text and own.node is None


def test_a_spent_privacy_budget_is_told_once() -> None:
    diary, why = Diary(), "its privacy budget is spent: epsilon 7.98 of 8"
    ((event, fields),) = diary.budgets_spent({A.node: why}, DAY_MS)
    assert diary.budgets_spent({A.node: why}, DAY_MS) == []
    (noted,) = diary.chronicle.events
    assert (noted.kind, noted.reason, noted.node, noted.level) == (event, why, A.node, "warning")
    assert fields["reason"] == why


def test_who_is_accused_can_be_found_by_its_events() -> None:
    assert entry_sentence(_verdict("forged"), NAMES).node == B.node
    assert entry_sentence(_verdict("upheld"), NAMES).node is None
    assert entry_sentence(TOLD[-1][0], NAMES).node == B.node
