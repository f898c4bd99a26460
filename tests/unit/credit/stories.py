"""Logs for tests of credit: hand-made ones, and ones that a seed draws, every entry made and checked as in a run."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from runlog.small_log import COORDINATOR, NODES, Clerk, make_claim, make_receipt, small_recipe

from shoal.credit.spec import CreditSpec
from shoal.runlog.entries import (
    Accepted,
    Assignment,
    Audits,
    DataRange,
    Funded,
    Left,
    Plan,
    Rejected,
    Rewind,
    Seal,
    Stopped,
    Verdict,
)
from shoal.runlog.view import head_of
from shoal.strategy.recipe import recipe_from
from shoal.wire.identity import Identity
from shoal.wire.signed import sign

BATCH = 4


def paying(audit: dict[str, Any] | None = None, **credit: Any) -> Clerk:
    """A log whose recipe has this `credit:` section, and maybe this `audit:` section."""
    values = small_recipe().model_dump(mode="json")
    clerk = Clerk()
    clerk.found(recipe_from({**values, "credit": credit, **({"audit": audit} if audit else {})}))
    return clerk


def judge(clerk: Clerk, seal: int, author: Identity, words: dict[Identity, str]) -> int:
    """An entry with these members' verdicts on the author's claim in a seal."""
    step = clerk.view.step_at(seal)
    assert step is not None
    (sequence,) = (u.claim.sequence for u in step.updates if u.claim.node == author.node)
    verdicts = tuple(
        sign(
            member,
            Verdict(
                run=clerk.view.run,
                node=member.node,
                at=head_of(clerk.view, seal),
                author=author.node,
                sequence=sequence,
                outcome=outcome,
            ),
        )
        for member, outcome in words.items()
    )
    return clerk.append(Audits(verdicts=verdicts))


def spec(**credit: Any) -> CreditSpec:
    return CreditSpec(**credit)


class Teller:
    """Tells a story that a seed draws: fleets, plans and plans again, seals of some, refusals, leaving, late work,
    attestations that agree or not, rewinds, and maybe an end."""

    def __init__(self, seed: int, credit: CreditSpec) -> None:
        self.random = random.Random(seed)
        self.clerk = paying(**credit.model_dump())
        self.present: list[Identity] = []

    def tell(self, rounds: int) -> Clerk:
        self.clerk.join(*NODES[:3])
        self.present = list(NODES[:3])
        for _ in range(rounds):
            self._come_and_go()
            self._plan()
            if self.random.random() < 0.3:
                self._plan()
            if self.random.random() < 0.2:
                self.clerk.append(Funded(add_micro=self.random.randint(1, 2_000)))
            self._seal()
            self._attest()
            if self.random.random() < 0.1:
                self._rewind()
        if self.random.random() < 0.5:
            self._end()
        return self.clerk

    def _come_and_go(self) -> None:
        view = self.clerk.view
        if self.random.random() < 0.2 and len(self.present) > 1:
            node = self.present.pop(self.random.randrange(len(self.present)))
            self.clerk.append(Left(node=node.node, reason="enough"))
        away = [node for node in NODES if node not in self.present]
        if away and self.random.random() < 0.3:
            node = self.random.choice(away)
            self.clerk.join(node)
            self.present.append(node)
        assert view.members

    def _plan(self) -> None:
        view, start, members = self.clerk.view, self.clerk.view.next_counter, []
        free = self.random.sample(self.present, self.random.randint(1, len(self.present)))
        for node in sorted(free, key=lambda one: one.node):
            steps, spare = self.random.randint(1, 4), self.random.randint(0, 2)
            data = DataRange(start, BATCH * (steps + spare))
            start += data.count
            members.append(
                Assignment(
                    node=node.node,
                    data=data,
                    steps=steps,
                    batch=BATCH,
                    spare=spare,
                    staleness=self.random.choice([0, 0, 0, 2]),
                )
            )
        # A plan says one measure for all its claims, and a round has one fragment list.
        measure = self.random.choice(["samples", "tokens-squared-per-step"])
        self.clerk.append(
            Plan(
                round=view.round,
                step=0,
                members=tuple(members),
                deadline_ms=1000,
                fragments=(0, 1),
                reason="told",
                weights=measure,
            )
        )

    def _seal(self) -> None:
        view = self.clerk.view
        able = [node for node in NODES if view.planned.get(node.node)]
        chosen = self.random.sample(able, self.random.randint(1, len(able)))
        accepted = tuple(self._accepted(node) for node in chosen)
        others = [node for node in able if node not in chosen]
        refused = [node for node in others if self.random.random() < 0.3]
        rejected = tuple(
            Rejected(node=node.node, sequence=900 + view.round, reason="late") for node in refused
        )
        self.clerk.append(
            Seal(round=view.round, fragments=(0, 1), accepted=accepted, rejected=rejected, reason="told")
        )

    def _accepted(self, node: Identity) -> Accepted:
        view = self.clerk.view
        plan = self.random.choice(sorted(view.planned[node.node]))
        work = view.planned[node.node][plan]
        samples = self.random.randint(1, work.data.count)
        claim = make_claim(
            view,
            node,
            sequence=1000 + view.length,
            plan=plan,
            round=work.round,
            base=work.base,
            data=(DataRange(work.data.start, samples),),
            samples=samples,
            tokens=self.random.randint(0, samples),
            steps=self.random.randint(1, samples),
        )
        fair = work.fair_weight(claim)
        weight = self.random.choice([fair, self.random.randint(1, fair)])
        others = [one for one in NODES if one is not node and one.node in view.members]
        holders = [COORDINATOR, *self.random.sample(others, self.random.randint(0, len(others)))]
        receipts = tuple(
            make_receipt(holder, claim.blob) for holder in self.random.sample(holders, len(holders))
        )
        return Accepted(claim=sign(node, claim), weight=weight, receipts=receipts)

    def _attest(self) -> None:
        view = self.clerk.view
        members = [node for node in NODES if node.node in view.members]
        for node in self.random.sample(members, self.random.randint(0, len(members))):
            self.clerk.attest(view.at, self.random.choice(["true", "true", "true", "other"]), node)
        if self.random.random() < 0.3:
            self.clerk.snapshot(view.at, "true")

    def _rewind(self) -> None:
        view = self.clerk.view
        kept = view.kept_states()[0].at
        places = [at for at in (0, *(step.position for step in view.path[:-1])) if at >= kept]
        if places:
            self.clerk.append(Rewind(to=self.random.choice(places), reason="asked"))

    def _end(self) -> None:
        self.clerk.append(Stopped(reason="told"))
        self._attest()
        if self.clerk.view.path:
            self.clerk.snapshot(self.clerk.view.at, "true")


def with_weight(item: Accepted, weight: int) -> Accepted:
    return msgspec.structs.replace(item, weight=weight)
