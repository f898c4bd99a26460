"""Work that is out: how late it may come, what its age is, and when it is closed."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Assignment, DataRange, Left, Rejected, Rewind, Stopped
from shoal.runlog.statements import open_claim
from shoal.runlog.view import VERDICTS_KEPT
from shoal.runlog.weights import MAX_WEIGHT, WEIGHTS
from shoal.runlog.work import MAX_STALENESS, Pace, Planned
from shoal.wire.signed import sign

from .small_log import BATCH, NODES, STEPS, Clerk, accepted, make_claim

A, B, C = NODES[:3]
SAMPLES = STEPS * BATCH


def _clerk(staleness: int = 2, **more: Any) -> Clerk:
    """A and B have work in round 0 that may come late."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    _plan(clerk, A, B, staleness=staleness, **more)
    return clerk


def _plan(clerk: Clerk, *nodes: Any, staleness: int = 2, weights: str = "samples", **more: Any) -> int:
    body = clerk.plan_body(*nodes)
    members = tuple(msgspec.structs.replace(m, staleness=staleness, **more) for m in body.members)
    return clerk.append(msgspec.structs.replace(body, members=members, weights=weights))


def _seal_b(clerk: Clerk) -> None:
    """A round without A."""
    clerk.seal(B)
    _plan(clerk, B)


def test_late_work_stays_open_as_long_as_it_may_be_sealed() -> None:
    clerk = _clerk(staleness=2)
    late = sign(A, make_claim(clerk.view, A))
    for _ in range(2):
        _seal_b(clerk)
        assert open_claim(clerk.view, late).round == 0
    _seal_b(clerk)
    assert A.node not in clerk.view.planned
    with pytest.raises(BadEntry, match="not in an open plan"):
        open_claim(clerk.view, late)


def test_without_staleness_a_seal_closes_everything() -> None:
    clerk = _clerk(staleness=0)
    late = sign(A, make_claim(clerk.view, A))
    clerk.seal(B)
    assert not clerk.view.planned
    with pytest.raises(BadEntry, match="not in an open plan"):
        open_claim(clerk.view, late)


def test_a_late_claim_stands_on_its_own_plan_and_has_an_age() -> None:
    clerk = _clerk()
    late = make_claim(clerk.view, A)
    _seal_b(clerk)
    _seal_b(clerk)
    item = accepted(clerk.view, A, **msgspec.structs.asdict(late))
    now = clerk.view.versions
    for wrong in ({"round": 2}, {"base": ((0, now[0]), (1, now[1]))}):
        with pytest.raises(BadEntry, match="claim"):
            clerk.append(
                clerk.seal_body(
                    accepted=(accepted(clerk.view, A, **{**msgspec.structs.asdict(late), **wrong}),)
                )
            )
    clerk.append(clerk.seal_body(accepted=(item, accepted(clerk.view, B))))
    by_node = {update.claim.node: update for update in clerk.view.path[-1].updates}
    assert by_node[A.node].ages == (2, 2) and by_node[B.node].ages == ()


def test_a_settled_claim_closes_its_work_and_what_is_older() -> None:
    clerk = _clerk()
    old = sign(A, make_claim(clerk.view, A))
    clerk.plan(A)
    newer = _plan(clerk, A)
    middle = clerk.view.planned[A.node][newer - 1]
    item = accepted(clerk.view, A, plan=middle.position, data=(middle.data,))
    clerk.append(clerk.seal_body(accepted=(item,)))
    assert list(clerk.view.planned[A.node]) == [newer], "what was given later is still open"
    with pytest.raises(BadEntry, match="settled before"):
        open_claim(clerk.view, old)


@pytest.mark.parametrize("body", [Rewind(to=0, reason=""), Stopped(reason="enough")])
def test_a_rewind_and_the_end_close_everything(body: Any) -> None:
    clerk = _clerk()
    _seal_b(clerk)
    clerk.append(body)
    assert not clerk.view.planned


def test_who_left_has_no_work_after_the_next_seal() -> None:
    clerk = _clerk()
    clerk.append(Left(node=A.node, reason="night"))
    assert A.node in clerk.view.planned, "it may still be sealed with the others"
    clerk.seal(B)
    assert A.node not in clerk.view.planned


def test_a_plan_without_members_needs_work_that_is_out() -> None:
    clerk = _clerk()
    clerk.seal(B)
    clerk.append(clerk.plan_body())
    clerk.append(clerk.seal_body(accepted=(_late(clerk, A),)))
    with pytest.raises(BadEntry, match="plans no work where none is out"):
        clerk.append(clerk.plan_body())


def _late(clerk: Clerk, node: Any, **changes: Any) -> Any:
    work = max(clerk.view.planned[node.node].values(), key=lambda one: one.position)
    values = {"round": work.round, "base": work.base, "plan": work.position, "data": (work.data,), **changes}
    return accepted(clerk.view, node, **values)


@pytest.mark.parametrize(
    "changes", [{"staleness": -1}, {"staleness": MAX_STALENESS + 1}, {"window_ms": -1}], ids=str
)
def test_the_time_for_work_is_bounded(changes: dict[str, int]) -> None:
    with pytest.raises(BadEntry, match="no proper time"):
        _clerk(**changes)


def test_updates_of_other_fragments_than_are_sealed_are_refused() -> None:
    clerk = _clerk()
    clerk.seal(B)
    body = clerk.plan_body(B, fragments=(1,))
    clerk.append(body)
    with pytest.raises(BadEntry, match="other fragments than it seals"):
        clerk.append(clerk.seal_body(accepted=(_late(clerk, A),), fragments=(1,)))
    with pytest.raises(BadEntry, match="other fragments than the round's first plan"):
        clerk.append(clerk.plan_body(C, fragments=(0,)))


# --- weights -----------------------------------------------------------------------------------------------


def test_the_plan_says_by_what_claims_are_weighed() -> None:
    with pytest.raises(BadEntry, match="no measure"):
        _clerk(weights="vibes")
    clerk = _clerk(weights="tokens-squared-per-step")
    fair = SAMPLES * SAMPLES // STEPS
    for weight, holds in ((fair, True), (1, True), (fair + 1, False)):
        item = msgspec.structs.replace(accepted(clerk.view, A), weight=weight)
        if holds:
            clerk.view.check(clerk.seal_body(accepted=(item,)))
        else:
            with pytest.raises(BadEntry, match="another weight"):
                clerk.view.check(clerk.seal_body(accepted=(item,)))


def _planned(steps: int = 4, batch: int = 2, spare: int = 2, weights: str = "samples") -> Planned:
    data = DataRange(0, batch * (steps + spare))
    work = Assignment(node=A.node, data=data, steps=steps, batch=batch, spare=spare)
    return Planned(
        position=3, round=0, step=0, at=0, base=((0, 0),), weights=weights, time_ms=0, assignment=work
    )


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_no_claim_weighs_more_than_its_whole_assignment(kind: str) -> None:
    clerk, work = _clerk(), _planned(weights=kind)
    most = work.whole_weight(8, spare=True)
    for samples in (1, 2, 7, 12, 500):
        for steps in (1, 3, 500):
            claim = make_claim(clerk.view, A, samples=samples, tokens=8 * samples, steps=steps)
            assert 1 <= work.fair_weight(claim) <= most
    assert work.whole_weight(8) < most


def test_weights_fit_the_entries_that_hold_them() -> None:
    clerk, work = _clerk(), _planned(steps=100_000, batch=2**20, weights="tokens-squared-per-step")
    claim = make_claim(clerk.view, A, samples=2**30, tokens=2**50, steps=1)
    assert work.fair_weight(claim) == MAX_WEIGHT and MAX_WEIGHT * 10_000 < 2**63


def test_the_fleet_is_at_least_those_here_and_at_most_all_with_work() -> None:
    clerk = _clerk()
    for whole, holds in ((0, True), (SAMPLES, True), (2 * SAMPLES, True), (SAMPLES - 1, False), (-1, False)):
        body = clerk.seal_body(A, whole=whole)
        if holds:
            clerk.view.check(body)
        else:
            with pytest.raises(BadEntry, match="fleet of weight"):
                clerk.view.check(body)
    with pytest.raises(BadEntry, match="fleet of weight"):
        clerk.view.check(clerk.seal_body(A, whole=2 * SAMPLES + 1))
    clerk.append(clerk.seal_body(A, whole=2 * SAMPLES))
    assert clerk.view.path[-1].whole == 2 * SAMPLES


# --- totals, paces, fates ----------------------------------------------------------------------------------


def test_totals_count_whole_rounds_and_shares_of_them() -> None:
    clerk = _clerk()
    clerk.seal(A, B)
    assert (clerk.view.totals.rounds, clerk.view.totals.steps, clerk.view.totals.tokens) == (1, 3, 12)
    _plan(clerk, A, B)
    clerk.append(clerk.seal_body(A, whole=2 * SAMPLES))
    assert (clerk.view.totals.rounds, clerk.view.totals.steps, clerk.view.totals.tokens) == (1.5, 4.5, 18)
    clerk.append(Rewind(to=clerk.view.path[0].position, reason="asked"))
    assert clerk.view.totals.steps == 3, "what was undone does not count"


def test_where_time_decides_the_steps_that_were_taken_count() -> None:
    clerk = _clerk(window_ms=500)
    two = accepted(clerk.view, A, steps=1, samples=2, tokens=2, data=(DataRange(0, 2),))
    clerk.append(clerk.seal_body(accepted=(msgspec.structs.replace(two, weight=2), accepted(clerk.view, B))))
    assert clerk.view.totals.steps == (1 + 3) / 2


def _planned_by(node: Any, time_ms: int) -> Planned:
    work = _planned()
    return replace(work, time_ms=time_ms, assignment=msgspec.structs.replace(work.assignment, node=node.node))


def test_paces_are_moving_means_of_entry_times() -> None:
    pace = Pace()
    pace.sealed(1000, [_planned_by(A, 400)], [])
    assert pace.work_ms == {A.node: 600} and pace.seal_ms == 0, "one seal is no interval"
    pace.sealed(1500, [_planned_by(A, 500)], [])
    assert pace.seal_ms == 500 and pace.work_ms[A.node] == pytest.approx(600 + 0.3 * 400)
    pace.sealed(1700, [], [_planned_by(B, 700)])
    assert pace.work_ms[B.node] == 2000, "it took longer than a second, nobody knows how long"
    assert pace.seal_ms == pytest.approx(500 - 0.3 * 300)


def test_a_clock_that_goes_back_and_a_coordinator_that_was_away_spoil_nothing() -> None:
    pace = Pace()
    pace.sealed(1000, [], [])
    pace.sealed(900, [_planned_by(A, 5000)], [])
    assert pace.seal_ms == 1 and pace.work_ms[A.node] == 1
    pace.interrupted()
    pace.sealed(10**9, [], [])
    assert pace.seal_ms == 1


def test_the_paces_in_the_view_are_those_of_the_log() -> None:
    clerk = _clerk()
    clerk.seal(A)
    _plan(clerk, A)
    clerk.seal(A)
    assert clerk.view.pace.seal_ms == 2 and set(clerk.view.pace.work_ms) == {A.node}
    clerk.term += 1
    clerk.plan(A)
    for _ in range(20):
        clerk.plan(A)
    clerk.seal(A)
    assert clerk.view.pace.seal_ms == 2, "another coordinator's first seal"


def test_the_fate_of_a_claim() -> None:
    clerk = _clerk(staleness=1)
    plan = clerk.view.plan_position
    fate = clerk.view.fate_of
    assert fate(A.node, 0, plan) is None and fate(A.node, 0, plan + 9) is None, "open, or not heard of yet"
    assert fate(NODES[4].node, 0, plan) is None, "nobody that this copy of the log knows"
    _seal_b(clerk)
    assert fate(A.node, 0, plan) is None and fate(B.node, 0, plan) is True
    _seal_b(clerk)
    assert fate(A.node, 0, plan) is False, "expired"
    clerk.append(Rewind(to=clerk.view.path[0].position, reason="asked"))
    assert fate(B.node, 1, plan) is True, "accepted and undone is not come to nothing"
    _plan(clerk, A)
    plan = clerk.view.plan_position
    assert fate(A.node, 3, plan) is None
    clerk.append(clerk.seal_body(A, rejected=(Rejected(node=B.node, sequence=9, reason="late"),)))
    assert fate(B.node, 9, plan) is False


def test_the_last_verdicts_are_kept() -> None:
    clerk = _clerk()
    for _ in range(VERDICTS_KEPT + 3):
        _seal_b(clerk)
    verdicts = clerk.view.members[B.node].accepted
    assert len(verdicts) == VERDICTS_KEPT and verdicts[-1] == clerk.view.members[B.node].last_sequence


def test_a_plan_that_chooses_no_codec_is_written_as_before_there_were_any() -> None:
    plain = Assignment(node=A.node, data=DataRange(0, 6), steps=3, batch=2)
    assert b"choice" not in msgspec.msgpack.encode(plain) and plain.codec == 0
    chosen = msgspec.structs.replace(plain, choice=2)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(chosen), type=Assignment)
    assert read == chosen and read.codec == 2
