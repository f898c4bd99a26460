"""Nodes as people see them: always as if worked out from the beginning, though only what changed is."""

from __future__ import annotations

import json
import random
from typing import Any

from coordinator.desk import Desk, members
from runlog.small_log import NODES, RUN, small_recipe

from shoal.apps.api.diary import Diary
from shoal.apps.api.roster import Roster
from shoal.apps.api.status import node_statuses
from shoal.coordinator.events import Arrived, BanAsked, Lost, RevokeAsked
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Verdict
from shoal.runlog.keys import news_in, rotate, shown_line
from shoal.runlog.view import head_of
from shoal.wire.identity import Identity
from shoal.wire.messages import Audited, Goodbye, Heartbeat
from shoal.wire.signed import sign

A, B, C = NODES[:3]


class _Shown:
    """A desk with a diary, and a roster that looks at them."""

    def __init__(self, nodes: int = 2, **sections: Any) -> None:
        self.desk = Desk(small_recipe(membership=members(nodes), **sections))
        self.diary, self.roster = Diary(), Roster()

    def look(self) -> list[dict[str, Any]]:
        self.refresh()
        return self.roster.news()

    def refresh(self) -> None:
        for encoded in self.desk.entries[self.diary.position :]:
            self.diary.take(read_link(encoded))
        self.diary.seats_moved(self.desk.machine.seats, False, 0)
        self.roster.refresh(self.desk.machine, self.diary, self.desk.now, int(self.desk.now * 1000))

    def expected(self) -> list[dict[str, Any]]:
        return [item.model_dump() for item in node_statuses(self.desk.machine, self.diary, self.desk.now)]


def _beat(step: int, doing: str = "training") -> Heartbeat:
    return Heartbeat(at=0, length=1, peers=0, doing=doing, step=step, loss=1.0, tokens_per_s=10.0)


def _works(desk: Desk, node: Identity) -> bool:
    seat = desk.machine.seats.by_node.get(node.node)
    return seat is not None and seat.connected and node.node in desk.view.planned


def test_only_what_changed_is_news() -> None:
    shown = _Shown()
    shown.desk.arrive(A, B)
    assert {item["node"] for item in shown.look()} == {A.node, B.node}
    assert shown.look() == []
    shown.desk.say(A, _beat(3))
    (news,) = shown.look()
    assert news["node"] == A.node and news["step"] == 3 and "name" not in news
    shown.desk.say(A, _beat(4))
    (news,) = shown.look()
    assert {name for name in news if name != "node"} == {"step"}


def test_news_are_not_lost_by_looking_twice() -> None:
    shown = _Shown()
    shown.desk.arrive(A, B)
    shown.look()
    shown.desk.say(A, _beat(3))
    shown.refresh()
    shown.desk.say(A, _beat(3, "folding"))
    (news,) = shown.look()
    assert (news["step"], news["doing"]) == (3, "folding")


def test_silence_is_counted_down_though_nobody_speaks() -> None:
    shown = _Shown()
    shown.desk.join(A, B)
    shown.look()
    shown.desk.step(Lost(A.node))
    assert [item["state"] for item in shown.look()] == ["silent"]
    shown.desk.now += 1.1
    (news,) = shown.look()
    assert "waited for 1 s more" in news["why"]
    shown.desk.now += 30
    assert {item["node"] for item in shown.look()} == {A.node, B.node}, "B's lease ran out, too"


def test_what_audits_come_to_is_news() -> None:
    """Updates that count, and a conviction by the members that the log draws."""
    shown = _Shown(3, audit={"rate": 1.0})
    desk, nodes = shown.desk, {node.node: node for node in (A, B, C)}
    desk.join(A, B, C)
    assert {item["reputation"] for item in shown.look()} == {500}
    for _ in range(4):
        desk.seal_round(A, B, C)
        desk.beat(A, B, C)
    assert {item["reputation"] for item in shown.look()} == {509}
    case = next(iter(desk.machine.auditing.docket.cases.values()))
    claim = case.update.claim
    while case.outcome == "open":
        auditor = next(nodes[node] for node in case.auditors if node not in case.verdicts)
        word = Verdict(run=RUN, node=auditor.node, at=head_of(desk.view, case.seal), author=claim.node,
                       sequence=claim.sequence, outcome="forged", distance=1.0, tolerance=0.3)  # fmt: skip
        desk.say(auditor, Audited(verdict=sign(auditor, word)))
        case = desk.machine.auditing.docket.cases[claim.node, claim.sequence]
    (news,) = shown.look()
    assert news["node"] == claim.node and (news["reputation"], news["convictions"]) == (509 // 4, 1)
    assert shown.roster.fields == {item["node"]: item for item in shown.expected()}


def test_a_loss_that_is_not_told_is_no_number() -> None:
    """Nodes of private runs claim 0."""
    shown = _Shown()
    shown.desk.join(A, B)
    for node in (A, B):
        assert shown.desk.offer(node, loss=0.0).kept
    shown.refresh()
    (record,) = shown.diary.chronicle.rounds
    assert record.train_loss is None and [update.loss for update in record.accepted] == [None, None]


def test_a_change_of_keys_is_news() -> None:
    shown = _Shown()
    shown.desk.join(A, B)
    assert {item["key"] for item in shown.look()} == {"first"}
    line = news_in(shown_line(rotate(A, bytes(32), revokes=True)[0], hybrid=False), A.public)
    shown.desk.step(Arrived(node=A.node, public=A.public, name="n", address="h:1", length=0, line=line))
    assert [item.get("key") for item in shown.look() if item["node"] == A.node] == ["replaced"]
    shown.desk.step(RevokeAsked(B.node, "lost"))
    assert [item.get("key") for item in shown.look() if item["node"] == B.node] == ["revoked"]


def test_whatever_happens_it_is_as_if_worked_out_anew() -> None:
    """Random events: what is shown, and as JSON, is what the machine says now."""
    for seed in range(20):
        shown, chance = _Shown(audit={"rate": seed % 2}), random.Random(seed)
        desk, here = shown.desk, []
        for _ in range(60):
            node = chance.choice((A, B, C))
            deed = chance.randrange(9)
            if node in here and not desk.view.keys[node.node].current:
                continue  # Nobody comes back whose keys were revoked.
            if deed == 0 or node not in here:
                desk.arrive(node)
                here = [*{*here, node}]
            elif deed == 1:
                desk.step(Lost(node.node))
            elif deed == 2:
                desk.say(node, Goodbye(reason="night"))
            elif deed == 3 and _works(desk, node):
                desk.offer(node)
            elif deed == 4:
                desk.tick(chance.random() * 4)
            elif deed == 5 and chance.random() < 0.1:
                desk.step(BanAsked(node.node, int(1e15), "rude"))
            elif deed == 6 and chance.random() < 0.1:
                desk.step(RevokeAsked(node.node, "lost"))
            elif deed == 7:
                desk.machine.seats.rest(chance.random() < 0.5)
            else:
                desk.say(node, _beat(chance.randrange(5)))
            if chance.random() < 0.5:
                shown.refresh()
                assert json.loads(shown.roster.encoded()) == shown.expected(), f"seed {seed}"
