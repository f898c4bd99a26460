"""Credit: a pure fold over the log, entry by entry.

In flow entries in order; out flow the lines that each of them is worth. Invariant: the lines of an entry depend on it
and on those before it only, so that a longer log never changes an earlier line, and anyone with the log recomputes
every number. What a node earns by training is a function of its own update; nothing is taken back by a rewind, and by a
conviction just what the convicted claim had earned its author, so that no balance is ever below zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from shoal.base.ids import NodeId
from shoal.credit.conduct import Conduct, Open, open_work
from shoal.credit.convictions import Claimed, Convictions
from shoal.credit.lines import (
    AUDIT,
    COORDINATE,
    HOLD,
    MISSED,
    REFUSED,
    TAKEN,
    TRAIN,
    UNDONE,
    Factor,
    Line,
    Remark,
    cut_to,
    make_line,
    split,
)
from shoal.credit.spec import MOST_MICRO, MOST_TOTAL_MICRO, CreditSpec
from shoal.runlog.chain import Link
from shoal.runlog.entries import Audits, Genesis, Plan, Rejected, Rewind, Seal, Snapshot, Stopped, Verdict
from shoal.runlog.view import RunView, Step, Update
from shoal.runlog.weights import claimed_work
from shoal.runlog.work import OpenWork, Planned


@dataclass(frozen=True, slots=True)
class Credited:
    """What one entry came to."""

    lines: tuple[Line, ...] = ()
    remarks: tuple[Remark, ...] = ()


NOTHING = Credited()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the log says of one update, for those who judge its quality."""

    update: Update
    work: Planned
    availability: tuple[int, int]


Fraction = tuple[int, int]


def _by_weight(evidence: Evidence) -> Fraction:
    """How much of its own weight the update counted for: an old one may count for less."""
    return evidence.update.weight, evidence.work.fair_weight(evidence.update.claim)


def _by_availability(evidence: Evidence) -> Fraction:
    return evidence.availability


QUALITIES: dict[str, Callable[[Evidence], Fraction]] = {
    "weight": _by_weight,
    "availability": _by_availability,
}
"""The judges of the rule `quality`, each of which gives a part and a whole. To add one: a function and a line here."""


class Crediting:
    """Follows a log. `take` either gives an entry's credit or raises `BadEntry`, as `RunView.apply` does."""

    def __init__(self, spec: CreditSpec) -> None:
        self.view = RunView()
        self.spec = spec
        self.spent_micro = 0
        self._conduct = Conduct()
        self._audit_micro = 0
        """The auditors' shares of seals whose audit is not closed."""
        self._unaudited: Step | None = None
        self._convictions = Convictions()
        self._earned: dict[tuple[NodeId, int], Line] = {}
        """What each update earned its author, by the author and the seal's position, where it may be convicted."""

    @property
    def budget_micro(self) -> int | None:
        """What the whole run may earn by now; None without a bound of its own."""
        budget = self.spec.budget_micro
        return None if budget is None else budget + self.view.funded_micro

    @property
    def owed_micro(self) -> int:
        """What was earned, with what is kept for auditors. What is taken back is not given to others: it may have been
        paid out already."""
        return self.spent_micro + self._audit_micro

    def take(self, link: Link) -> Credited:
        body, position = link.entry.body, link.entry.position
        is_seal, is_rewind = isinstance(body, Seal), isinstance(body, Rewind)
        planned = {node: dict(plans) for node, plans in self.view.planned.items()} if is_seal else {}
        standing = list(self.view.path) if is_rewind else []
        self.view.apply(link)
        match body:
            case Genesis():
                self._convictions.founded(body)
                return NOTHING
            case Audits():
                return Credited(self._judged(position))
            case Plan():
                self._conduct.planned(body)
                return NOTHING
            case Seal():
                credited = self._sealed(body, position, planned)
            case Rewind():
                credited = Credited(self._audited(position), _undone(body, position, standing))
            case Stopped():
                credited = Credited(
                    self._ended(position), _refusals(body.rejected, position, self.view.round)
                )
            case Snapshot():
                credited = Credited(self._ended(position))
            case _:
                return NOTHING
        return self._within_budget(credited)

    def _within_budget(self, credited: Credited) -> Credited:
        budget = self.budget_micro
        whole = MOST_TOTAL_MICRO if budget is None else budget
        lines = cut_to(credited.lines, whole - self.spent_micro)
        if self._convictions.possible:
            self._earned |= {(line.node, line.position): line for line in lines if line.role == TRAIN}
        self.spent_micro += sum(line.micro for line in lines)
        return Credited(lines, credited.remarks)

    # --- seals -------------------------------------------------------------------------------------------

    def _sealed(self, seal: Seal, position: int, planned: OpenWork) -> Credited:
        lines = list(self._audited(position))
        step = self.view.path[-1]
        held: Counter[NodeId] = Counter()
        holding: Counter[NodeId] = Counter()
        coordinated = 0
        for update in step.updates:
            work = planned[update.claim.node][update.claim.plan]
            trained, price = self._trained(step, update, work)
            lines.append(trained)
            for holder, part in split(price * self.spec.hubs_percent // 100, update.holders):
                held[holder] += 1
                holding[holder] += part
            coordinated += price * self.spec.coordinator_percent // 100
            self._audit_micro += price * self.spec.auditors_percent // 100
        for holder in sorted(held):
            lines.append(_plain(step, holder, HOLD, held[holder], holding[holder]))
        lines.append(_plain(step, self.view.coordinator, COORDINATE, len(step.updates), coordinated))
        self._unaudited = step
        return Credited(tuple(line for line in lines if line.full_micro), self._remarks(seal, step, planned))

    def _trained(self, step: Step, update: Update, work: Planned) -> tuple[Line, int]:
        """What the update earns its node, and its whole price, of which the others have their shares."""
        spec, claim = self.spec, update.claim
        done = claimed_work(claim, work.assignment)
        units = done.samples if spec.unit == "samples" else done.tokens
        full = min(units * spec.price_micro, MOST_MICRO)
        factors, price = [], full
        if spec.most_micro is not None and full > spec.most_micro:
            factors.append(Factor("cap", spec.most_micro, full))
            price = spec.most_micro
        if spec.others_percent:
            factors.append(Factor("shares", 100 - spec.others_percent, 100))
        if spec.rule == "quality":
            evidence = Evidence(update, work, self._conduct.availability(claim.node))
            factors += [Factor(name, *judge(evidence)) for name, judge in QUALITIES.items()]
        line = make_line(
            position=step.position,
            round=step.round,
            node=claim.node,
            role=TRAIN,
            units=units,
            full=full,
            factors=factors,
        )
        return line, price

    def _remarks(self, seal: Seal, step: Step, planned: OpenWork) -> tuple[Remark, ...]:
        gone = {node for node, member in self.view.members.items() if not member.present}
        excused = frozenset(gone | {one.node for one in seal.rejected})
        claims = [update.claim for update in step.updates]
        before: Open = open_work(planned)
        missed = self._conduct.sealed(claims, excused, before, open_work(self.view.planned))
        late = [Remark(position=step.position, round=round, node=node, kind=MISSED) for node, round in missed]
        return (*_refusals(seal.rejected, step.position, step.round), *late)

    # --- audits ------------------------------------------------------------------------------------------

    def _audited(self, position: int) -> tuple[Line, ...]:
        """Share out what auditors have earned since the last audit, if most of them saw the same state."""
        step, self._unaudited = self._unaudited, None
        if step is None or not self._audit_micro:
            return ()
        words = self.view.attested.get(step.position, {})
        states = Counter(word.state for word in words.values() if word.how == "folded")
        state, votes = max(sorted(states.items()), key=lambda item: item[1], default=("", 0))
        if 2 * votes <= sum(states.values()) or not votes:
            return ()  # Nobody looked, or they disagree: the next audit has it.
        agreeing = sorted(n for n, word in words.items() if word.how == "folded" and word.state == state)
        pool, self._audit_micro = self._audit_micro, 0
        return tuple(
            make_line(
                position=position, round=step.round, node=node, role=AUDIT, units=1, full=part, factors=()
            )
            for node, part in split(pool, agreeing)
            if part
        )

    def _judged(self, position: int) -> tuple[Line, ...]:
        """Take back what claims had earned that the words of this entry convict."""
        new = takewhile(lambda one: one[0] == position, reversed(self.view.audit_words))
        words = [word for _, word in reversed(list(new)) if isinstance(word, Verdict)]
        convicted = [claimed for word in words if (claimed := self._convictions.heard(word)) is not None]
        return tuple(line for claimed in convicted if (line := self._taken(position, claimed)) is not None)

    def _taken(self, position: int, claimed: Claimed) -> Line | None:
        author, _, seal = claimed
        line = self._earned.pop((author, seal), None)
        if line is None or not line.micro:
            return None
        return make_line(
            position=position,
            round=line.round,
            node=author,
            role=TAKEN,
            units=1,
            full=-line.micro,
            factors=(),
        )

    def _ended(self, position: int) -> tuple[Line, ...]:
        """The last audit is closed when the run is over and its final state is saved."""
        over = self.view.stopped is not None and self.view.best_start().at == self.view.at
        return self._audited(position) if over else ()


def _plain(step: Step, node: NodeId, role: str, units: int, micro: int) -> Line:
    return make_line(
        position=step.position, round=step.round, node=node, role=role, units=units, full=micro, factors=()
    )


def _refusals(rejected: Iterable[Rejected], position: int, round: int) -> tuple[Remark, ...]:
    return tuple(
        Remark(position=position, round=round, node=one.node, kind=REFUSED, words=one.reason)
        for one in rejected
    )


def _undone(rewind: Rewind, position: int, standing: list[Step]) -> tuple[Remark, ...]:
    return tuple(
        Remark(position=position, round=step.round, node=update.claim.node, kind=UNDONE)
        for step in standing
        if step.position > rewind.to
        for update in step.updates
    )
