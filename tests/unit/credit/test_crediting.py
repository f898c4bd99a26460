"""What entries are worth: by hand, by properties, and against a program that shares no code with ours."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from runlog.small_log import COORDINATOR, NODES, RUN, Clerk, accepted

from shoal.base.ids import NodeId
from shoal.credit.account import Account, account_of
from shoal.credit.crediting import Crediting
from shoal.credit.lines import AUDIT, COORDINATE, HOLD, MISSED, REFUSED, TAKEN, TRAIN, UNDONE
from shoal.credit.spec import CreditSpec, show_credits
from shoal.credit.words import explain
from shoal.runlog.chain import BadEntry, read_link
from shoal.runlog.entries import Funded, Left, Rejected, Rewind, Stopped
from shoal.runlog.files import FileLogStore
from shoal.strategy.recipe import recipe_in_log
from shoal.worlds.real.disk import FileDisk

from . import credit_from_log
from .stories import Teller, judge, paying, with_weight

A, B, C = NODES[:3]
UNITS = 6  # samples in each of the small log's updates
PLAIN: dict[str, Any] = {"price_micro": 100, "hubs_percent": 0, "auditors_percent": 0}


def account(clerk: Clerk) -> Account:
    assert clerk.view.genesis is not None
    return account_of(clerk.entries, recipe_in_log(clerk.view.genesis.recipe).credit)


def micro(found: Account, node: NodeId, role: str) -> int:
    return sum(line.micro for line in found.of(node) if line.role == role)


def independent(clerk: Clerk) -> dict[str, int]:
    return credit_from_log.credit(clerk.entries)


def both(clerk: Clerk) -> Account:
    found = account(clerk)
    assert independent(clerk) == {node: sum for node, sum in found.balances.items() if sum}
    return found


def test_every_sample_has_its_price() -> None:
    clerk = paying(**PLAIN)
    clerk.join(A, B)
    clerk.plan(A, B)
    clerk.seal(A, B)
    found = both(clerk)
    assert found.balances == {A.node: 600, B.node: 600}
    assert [line.units for line in found.lines] == [UNITS, UNITS]


def test_shares_go_to_holders_auditors_and_the_coordinator() -> None:
    clerk = paying(price_micro=100, hubs_percent=10, auditors_percent=20, coordinator_percent=5)
    clerk.join(A, B)
    clerk.plan(A, B)
    body = clerk.seal_body(A)
    body = type(body)(**{**_fields(body), "accepted": (accepted(clerk.view, A, B),)})
    first = clerk.append(body)
    clerk.attest(first, "s1", A, B)
    before = both(clerk)
    assert micro(before, A.node, TRAIN) == 600 * 65 // 100
    assert micro(before, B.node, HOLD) == 60
    assert micro(before, COORDINATOR.node, COORDINATE) == 30
    assert not [line for line in before.lines if line.role == AUDIT]  # its audit is closed by the next seal
    clerk.plan(A, B)
    clerk.seal(A)
    after = both(clerk)
    assert (micro(after, A.node, AUDIT), micro(after, B.node, AUDIT)) == (60, 60)
    assert after.lines[: len(before.lines)] == before.lines


def test_what_does_not_divide_is_lost_to_nobody() -> None:
    clerk = paying(price_micro=1, auditors_percent=100, hubs_percent=0)
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    first = clerk.seal(A, B, C)  # 18 units
    clerk.plan(A, B, C)
    clerk.attest(first, "s1", A, B, C)
    second = clerk.seal(A)  # pays 18 by 3
    clerk.attest(second, "s2", A, B, C)
    clerk.plan(A)
    clerk.seal(A)  # pays 6 by 3
    assert both(clerk).balances == {A.node: 8, B.node: 8, C.node: 8}


def test_auditors_who_disagree_leave_their_share_to_the_next() -> None:
    clerk = paying(price_micro=100, auditors_percent=50, hubs_percent=0)
    clerk.join(A, B)
    for words in [("one", "two"), ("same", "same"), ()]:
        clerk.plan(A, B)
        at = clerk.seal(A, B)
        for node, word in zip((A, B), words, strict=False):
            clerk.attest(at, word, node)
    found = both(clerk)
    assert micro(found, A.node, AUDIT) == 600  # of two seals


def test_the_last_audit_closes_when_the_final_state_is_saved() -> None:
    clerk = paying(price_micro=100, auditors_percent=50, hubs_percent=0)
    clerk.join(A)
    clerk.plan(A)
    at = clerk.seal(A)
    clerk.append(Stopped(reason="enough"))
    clerk.attest(at, "final", A)
    assert micro(both(clerk), A.node, AUDIT) == 0
    clerk.snapshot(at, "final")
    assert micro(both(clerk), A.node, AUDIT) == 300


def test_a_conviction_takes_back_what_the_claim_earned_and_no_more() -> None:
    clerk = paying(audit={"rate": 0.05}, price_micro=100, hubs_percent=10, auditors_percent=0)
    d = NODES[3]
    clerk.join(A, B, C, d)
    clerk.plan(A, B, C, d)
    seal = clerk.seal(A, B, C, d)
    before = both(clerk)
    judge(clerk, seal, A, {B: "forged"})
    assert both(clerk).balances == before.balances, "one word convicts nobody"
    judge(clerk, seal, A, {C: "withheld"})
    after = both(clerk)
    assert micro(after, A.node, TAKEN) == -micro(before, A.node, TRAIN) < 0
    assert after.balances == {**before.balances, A.node: micro(before, A.node, HOLD)}
    assert after.lines[: len(before.lines)] == before.lines
    assert "convicted 1 update" in " ".join(explain(after, A.node))
    judge(clerk, seal, A, {d: "forged"})
    assert both(clerk).balances == after.balances, "once"
    clerk.plan(A, B)
    clerk.seal(A, B)
    assert both(clerk).balances[A.node] > after.balances[A.node], "later work is paid"


def test_a_claim_that_most_uphold_keeps_what_it_earned() -> None:
    clerk = paying(audit={"rate": 0.05, "jury": 4}, **PLAIN)
    clerk.join(*NODES[:4])
    clerk.plan(*NODES[:4])
    seal = clerk.seal(*NODES[:4])
    before = both(clerk).balances
    judge(clerk, seal, A, {B: "forged", C: "forged", NODES[3]: "upheld"})
    assert both(clerk).balances == before, "two of a panel of five"


def test_what_is_taken_back_is_not_spent_again() -> None:
    clerk = paying(audit={"rate": 0.05}, **PLAIN, budget_micro=1800)
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    judge(clerk, clerk.seal(A, B, C), A, {B: "forged", C: "forged"})
    clerk.plan(A, B, C)
    clerk.seal(A, B, C)
    assert both(clerk).balances == {A.node: 0, B.node: 600, C.node: 600}


def test_a_cap_is_exact() -> None:
    clerk = paying(**PLAIN, most_micro=333)
    clerk.join(A)
    clerk.plan(A)
    clerk.seal(A)
    assert both(clerk).balances == {A.node: 333}


def test_a_budget_that_is_raised_pays_what_comes_after_and_nothing_again() -> None:
    clerk = paying(**PLAIN, budget_micro=600)
    clerk.join(A)
    for _ in range(2):
        clerk.plan(A)
        clerk.seal(A)
    clerk.append(Funded(add_micro=500, reason="more"))
    assert both(clerk).balances == {A.node: 600}
    clerk.plan(A)
    clerk.seal(A)
    found = both(clerk)
    assert found.balances == {A.node: 1100}
    assert found.funded_micro == 500
    assert "0.001100 for the whole run" in " ".join(explain(found, A.node))


def test_what_auditors_have_coming_is_owed_before_it_is_paid() -> None:
    clerk = paying(price_micro=100, hubs_percent=0, auditors_percent=20)
    clerk.join(A)
    clerk.plan(A)
    clerk.seal(A)
    crediting = Crediting(CreditSpec(price_micro=100, hubs_percent=0, auditors_percent=20))
    for encoded in clerk.entries:
        crediting.take(read_link(encoded))
    assert (crediting.spent_micro, crediting.owed_micro) == (480, 600)


@pytest.mark.parametrize("amount", [0, -1, 10**15 + 1])
def test_no_log_takes_funds_that_are_none_or_beyond_all_bounds(amount: int) -> None:
    clerk = paying(**PLAIN, budget_micro=600)
    with pytest.raises(BadEntry):
        clerk.append(Funded(add_micro=amount))


def test_a_budget_is_shared_out_and_then_spent() -> None:
    clerk = paying(**PLAIN, budget_micro=1500)
    clerk.join(A, B)
    for _ in range(3):
        clerk.plan(A, B)
        clerk.seal(A, B)
    found = both(clerk)
    assert found.balances == {A.node: 750, B.node: 750}
    assert found.total_micro == 1500


def test_quality_counts_weight_and_reliability() -> None:
    clerk = paying(**PLAIN, rule="quality")
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    body = clerk.seal_body(A, C)
    late = with_weight(body.accepted[0], 2)
    clerk.append(type(body)(**{**_fields(body), "accepted": (late, body.accepted[1])}))  # and B misses it
    clerk.plan(A, B, C)
    clerk.seal(A, B, C)
    found = both(clerk)
    assert micro(found, A.node, TRAIN) == 600 * 2 // 6 + 600
    assert micro(found, B.node, TRAIN) == 600 // 2  # one missed, with one to the good
    assert [remark.node for remark in found.remarks if remark.kind == MISSED] == [B.node]


def test_nobody_is_blamed_for_leaving_for_a_refusal_or_for_a_round_that_most_missed() -> None:
    clerk = paying(**PLAIN, rule="quality")
    clerk.join(*NODES)
    clerk.plan(*NODES)
    clerk.seal(A)  # four of five missed it
    clerk.plan(*NODES)
    clerk.append(Left(node=B.node, reason="enough"))
    clerk.seal(A, *NODES[3:], rejected=(Rejected(node=C.node, sequence=1, reason="late"),))
    clerk.join(B)
    clerk.plan(B, C)
    clerk.seal(B, C)
    found = both(clerk)
    assert not [remark for remark in found.remarks if remark.kind == MISSED]
    assert micro(found, B.node, TRAIN) == micro(found, C.node, TRAIN) == 600
    assert [remark.kind for remark in found.remarks] == [REFUSED]


def test_planning_again_is_nobodys_fault() -> None:
    clerk = paying(**PLAIN, rule="quality")
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    first = accepted(clerk.view, A)
    clerk.plan(A, C)  # because B is dead
    body = clerk.seal_body(A, C)
    clerk.append(type(body)(**{**_fields(body), "accepted": (first, body.accepted[1])}))
    clerk.plan(A, C)
    clerk.seal(A, C)
    assert micro(both(clerk), A.node, TRAIN) == 1200


def test_a_rewind_takes_nothing_back() -> None:
    clerk = paying(**PLAIN)
    clerk.join(A, B)
    clerk.plan(A, B)
    clerk.seal(A, B)
    clerk.append(Rewind(to=0, reason="a blob is lost"))
    clerk.plan(A, B)
    clerk.seal(A, B)
    found = both(clerk)
    assert found.balances == {A.node: 1200, B.node: 1200}
    assert {(one.kind, one.node) for one in found.remarks} == {(UNDONE, A.node), (UNDONE, B.node)}


@settings(max_examples=60, deadline=None)
@given(
    missing=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=1, max_size=6),
    rule=st.sampled_from(["proportional", "quality"]),
    dead=st.integers(1, 3),
)
def test_a_dead_peer_costs_nobody_else(missing: list[set[int]], rule: str, dead: int) -> None:
    def story(is_dead: bool) -> Account:
        clerk = paying(price_micro=97, rule=rule)
        clerk.join(*NODES[:4])
        for absent in missing:
            clerk.plan(*NODES[:4])
            gone = (absent | {dead} if is_dead else absent) - {0}
            clerk.seal(*(node for place, node in enumerate(NODES[:4]) if place not in gone))
        return account(clerk)

    alive, with_dead = story(False), story(True)
    for place, node in enumerate(NODES[:4]):
        if place != dead:
            assert micro(with_dead, node.node, TRAIN) >= micro(alive, node.node, TRAIN)


SPECS = st.builds(
    CreditSpec,
    unit=st.sampled_from(["samples", "tokens"]),
    price_micro=st.integers(0, 1009),
    rule=st.sampled_from(["proportional", "quality"]),
    most_micro=st.none() | st.integers(1, 5000),
    budget_micro=st.none() | st.integers(0, 40_000),
    hubs_percent=st.integers(0, 33),
    auditors_percent=st.integers(0, 33),
    coordinator_percent=st.integers(0, 34),
)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**9), credit=SPECS, rounds=st.integers(1, 8))
def test_an_independent_program_agrees_to_the_unit(seed: int, credit: CreditSpec, rounds: int) -> None:
    found = both(Teller(seed, credit).tell(rounds))
    if credit.budget_micro is not None:
        assert found.total_micro <= credit.budget_micro + found.funded_micro
    assert all(line.micro >= 0 for line in found.lines)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), credit=SPECS)
def test_a_longer_log_changes_no_line(seed: int, credit: CreditSpec) -> None:
    entries = Teller(seed, credit).tell(5).entries
    crediting = Crediting(credit)
    lines: list[Any] = []
    for count, encoded in enumerate(entries, 1):
        lines += crediting.take(read_link(encoded)).lines
        if count % 7 == 0:
            assert account_of(entries[:count], credit).lines == tuple(lines)
    assert account_of(entries, credit).lines == tuple(lines)


def test_the_independent_program_runs_alone_on_a_log_file(tmp_path: Path) -> None:
    source = Path(credit_from_log.__file__)
    names = [
        alias.name.partition(".")[0]
        for item in ast.walk(ast.parse(source.read_text("utf-8")))
        for alias in getattr(item, "names", [])
    ]
    assert "shoal" not in names and "shoal" not in json.dumps(names)
    clerk = Teller(3, CreditSpec(rule="quality")).tell(6)
    store = FileLogStore(FileDisk(tmp_path), lambda point: None)
    for position, entry in enumerate(clerk.entries):
        store.append(RUN, position, entry)
    command = [sys.executable, str(source), str(tmp_path / "logs" / f"{RUN}.log")]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert said["entries"] == len(clerk.entries)
    assert said["micro"] == {node: sum for node, sum in account(clerk).balances.items() if sum}


def test_the_words_name_every_reason() -> None:
    clerk = paying(price_micro=100, rule="quality", most_micro=300, coordinator_percent=10)
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    clerk.seal(A, C)
    clerk.plan(A, B, C)
    clerk.seal(A, B, rejected=(Rejected(node=C.node, sequence=5, reason="too late"),))
    clerk.append(Rewind(to=0, reason="asked"))
    found = account(clerk)
    about = {node.node: "\n".join(explain(found, node.node)) for node in (A, B, C)}
    assert "2 updates counted in 2 rounds from 0 to 1, with 12 samples" in about[A.node]
    assert "cut to the most that one update may earn" in about[A.node]
    assert "of which 80% are its own" in about[A.node]
    assert "had missed rounds before" in about[B.node] and "sent nothing in time" in about[B.node]
    assert "refused and earned nothing (too late: 1)" in about[C.node]
    assert "undone by a rewind; what they earned stays" in about[C.node]
    assert show_credits(found.balances[A.node]) in about[A.node]


def test_shares_of_more_than_everything_are_refused() -> None:
    with pytest.raises(ValidationError, match="101 percent"):
        CreditSpec(hubs_percent=50, auditors_percent=50, coordinator_percent=1)


def test_credits_are_shown_with_all_their_millionths() -> None:
    assert [show_credits(n) for n in (0, 1, 1_234_567, 12_000_000_000)] == [
        "0.000000",
        "0.000001",
        "1.234567",
        "12,000.000000",
    ]


def _fields(body: Any) -> dict[str, Any]:
    return {name: getattr(body, name) for name in body.__struct_fields__}
