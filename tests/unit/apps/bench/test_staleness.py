"""Seal rules on a fleet of very different speeds, and the account of what was given out."""

from __future__ import annotations

import msgspec
import pytest
import torch

from shoal.apps.bench.staleness import ADAPTIVE, DEFAULT, RULES, Course, measure, table
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.runlog.entries import Accepted, Assignment, Body, Claim, DataRange, Entry, Head, Plan, Seal
from shoal.wire.signed import Signed


def _entry(position: int, body: Body) -> Entry:
    return Entry(run=RunId("r"), position=position, previous="", term=1, time_ms=0, body=body)


def _plan(position: int, round_number: int, staleness: int, *nodes: str) -> Entry:
    members = tuple(
        Assignment(node=NodeId(node), data=DataRange(0, 1), steps=1, batch=1, staleness=staleness)
        for node in nodes
    )
    plan = Plan(round=round_number, step=0, members=members, deadline_ms=1, fragments=(0,), reason="")
    return _entry(position, plan)


def _seal(position: int, round_number: int, *claims: tuple[str, int]) -> Entry:
    accepted = tuple(
        Accepted(claim=Signed(msgspec.msgpack.encode(_claim(*claim)), b""), weight=1, receipts=())
        for claim in claims
    )
    return _entry(
        position, Seal(round=round_number, fragments=(0,), accepted=accepted, rejected=(), reason="")
    )


def _claim(node: str, plan: int) -> Claim:
    return Claim(
        run=RunId("r"),
        node=NodeId(node),
        sequence=0,
        round=0,
        plan=plan,
        head=Head(0, ""),
        base=(),
        steps=1,
        samples=1,
        tokens=1,
        data=(),
        local_before="",
        local_after="",
        blob=BlobId(""),
        size_bytes=1,
        loss=0.0,
    )


def test_work_is_accepted_lost_or_still_out() -> None:
    course = Course(lambda params: 0.0, 1.0)
    for entry in (
        _plan(1, 0, 1, "fast", "slow", "gone"),
        _seal(2, 0, ("fast", 1)),
        _plan(3, 1, 1, "fast"),
        _seal(4, 1, ("fast", 3), ("slow", 1)),
        _plan(5, 2, 1, "fast", "slow"),
    ):
        course.appended(entry)
    assert (course.given, course.accepted, course.lost, course.seals) == (6, 3, 1, 2)
    assert course.accepted_share == 0.75
    assert course.heard == {"fast", "slow"}


def test_the_target_ends_it() -> None:
    losses = iter([3.0, 0.9])
    course = Course(lambda params: next(losses), 1.0)
    assert course.reached(5.0, _State()) == ""  # type: ignore[arg-type]
    assert course.reached(6.0, _State()) != ""  # type: ignore[arg-type]
    assert (course.reached_s, course.loss) == (6.0, 0.9)


class _State:
    params = torch.zeros(1)


@pytest.fixture(scope="module")
def result() -> dict[str, dict[str, dict[str, float]]]:
    return measure(4, 1, lambda text: None, target=3.6)


def test_adaptive_bounds_lose_next_to_nothing(result: dict[str, dict[str, dict[str, float]]]) -> None:
    assert result["adaptive_accepted_share"] >= 0.95
    assert result["rules"]["all-or-deadline, 600 s"]["accepted_share"] == 1.0
    assert result["rules"]["all-or-deadline, 10 s"]["accepted_share"] < 0.75


def test_who_does_not_wait_is_there_sooner(result: dict[str, dict[str, dict[str, float]]]) -> None:
    seconds = {name: row["seconds_to_target"] for name, row in result["rules"].items()}
    assert all(seconds.values())
    assert seconds[DEFAULT] > 2 * seconds[ADAPTIVE]
    lines = table(result)
    assert len(lines) == 2 + len(RULES)
