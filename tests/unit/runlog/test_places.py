"""What a seal takes over from its plan: the round's rate, and where on the path its work began."""

import msgspec

from shoal.runlog.entries import Plan, Rewind
from shoal.runlog.view import verify_log

from .small_log import NODES, Clerk, accepted

A, B, C = NODES[:3]


def _clerk() -> Clerk:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    return clerk


def _round(clerk: Clerk, rate: float = 1.0) -> int:
    clerk.append(clerk.plan_body(A, B, rate=rate))
    return clerk.seal(A, B)


def test_a_seal_has_its_rounds_rate_and_its_place_on_the_path() -> None:
    clerk = _clerk()
    for rate in (0.25, 1.0, 0.5):
        _round(clerk, rate)
    assert [(step.rate, step.place) for step in clerk.view.path] == [(0.25, 0), (1.0, 1), (0.5, 2)]
    assert [update.place for step in clerk.view.path for update in step.updates] == [0, 0, 1, 1, 2, 2]


def test_after_a_rewind_places_are_counted_from_there() -> None:
    clerk = _clerk()
    first = _round(clerk)
    _round(clerk)
    clerk.append(Rewind(to=first, reason="asked"))
    _round(clerk)
    assert clerk.view.round == 3 and [step.place for step in clerk.view.path] == [0, 1]
    assert {update.place for update in clerk.view.path[-1].updates} == {1}


def test_a_late_update_keeps_the_place_of_its_plan() -> None:
    clerk = _clerk()
    body = clerk.plan_body(A, B)
    late = tuple(msgspec.structs.replace(member, staleness=2) for member in body.members)
    clerk.append(msgspec.structs.replace(body, members=late))
    offer = accepted(clerk.view, B)
    clerk.seal(A)
    clerk.plan(A)
    clerk.append(clerk.seal_body(A, accepted=(accepted(clerk.view, A), offer)))
    assert [update.place for update in clerk.view.path[-1].updates] == [1, 0]


def test_a_later_plan_of_a_round_has_its_rate() -> None:
    clerk = _clerk()
    clerk.append(clerk.plan_body(A, rate=0.5))
    clerk.append(clerk.plan_body(B, rate=0.5))
    clerk.seal(A, B)
    assert clerk.view.path[-1].rate == 0.5


def test_a_log_from_before_there_were_rates_reads_as_ever() -> None:
    clerk = _clerk()
    _round(clerk)
    plan = msgspec.to_builtins(clerk.plan_body(A))
    del plan["rate"]
    assert msgspec.convert(plan, Plan).rate == 1.0
    view, finding = verify_log(clerk.entries)
    assert finding is None and view.path[-1].rate == 1.0
