"""Which of the coordinator's words on its earnings a node keeps."""

from __future__ import annotations

from typing import Any

import msgspec
from runlog.small_log import COORDINATOR, NODES, RUN

from shoal.credit.ledger import PayReceipt
from shoal.node.events import Heard, KeepReceipt
from shoal.wire.identity import Identity
from shoal.wire.messages import Beat, Paid
from shoal.wire.signed import sign

from .pupil import Pupil, at_work

A, B = NODES[:2]


def receipt(pupil: Pupil, by: Identity = COORDINATOR, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "run": RUN,
        "node": A.node,
        "round": 0,
        "position": 1,
        "head": pupil.machine.view.hashes[1],
        "page": 4,
        "ledger": "0" * 64,
        "micro": 5,
        "cumulative_micro": 25,
    }
    return msgspec.msgpack.encode(sign(by, PayReceipt(**{**values, **changes})))


def kept(pupil: Pupil, encoded: bytes) -> list[KeepReceipt]:
    pupil.step(Heard(Paid(receipt=encoded)))
    return pupil.wanted(KeepReceipt)


def test_a_nodes_own_receipt_of_its_own_log_is_kept() -> None:
    pupil = at_work()
    mine = receipt(pupil)
    assert kept(pupil, mine) == [KeepReceipt(4, mine)]
    assert pupil.machine.earned_micro == 25
    ahead = receipt(pupil, position=10**6, head="f" * 64, page=9, cumulative_micro=30)
    assert kept(pupil, ahead) == [KeepReceipt(9, ahead)]  # of an entry that is on its way
    assert pupil.machine.earned_micro == 30


def test_everything_else_is_not() -> None:
    pupil = at_work()
    for encoded in (
        b"",
        b"\xc1" * 50,
        b"x" * 5000,
        receipt(pupil, by=B),
        receipt(pupil, node=B.node),
        receipt(pupil, run="another"),
        receipt(pupil, head="0" * 64),
        receipt(pupil, page=-1),
        receipt(pupil, position=-1),
    ):
        assert kept(pupil, encoded) == []
    assert pupil.machine.earned_micro == 0


def test_a_node_without_work_says_why_it_has_none_until_that_is_over() -> None:
    pupil = Pupil(A, B)
    pupil.settle_in()
    pupil.step(Heard(Beat(length=pupil.machine.view.length, note="paused: the budget is spent")))
    assert pupil.machine.doing == "paused: the budget is spent"
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    assert pupil.machine.doing == "training round 0"
