"""The docket: which claims were drawn, who must judge them, what was found, and what members' standing came to.

In flows a view; out flow cases, duties and standings. Invariant: a function of the log alone, the same for everybody:
words of members who were not drawn count for nothing, and nobody is convicted on one word.

When a seal comes, claims of the seal before it are drawn, by the newer seal's hash: by then somebody had time to look
at all of them, and their authors had no way to know. A first accusation draws a jury, by the hash of its own entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.audit.selection import Candidate, Purse, lots
from shoal.audit.spec import AuditSpec
from shoal.audit.standing import FULL, SEAT, Standings
from shoal.base.ids import NodeId
from shoal.runlog.entries import Screening, Verdict
from shoal.runlog.view import RunView, Step, Update

WINDOW = 16
"""For so many seals after its draw a case may still be judged."""
Key = tuple[NodeId, int]
"""A claim: its author and its sequence."""


@dataclass(slots=True, kw_only=True)
class Case:
    """A claim that was drawn."""

    seal: int
    """The position of the seal that accepted it."""
    update: Update
    drawn_at: int
    place: int
    """How many seals stood when it was drawn."""
    aimed: bool
    score: int
    auditors: tuple[NodeId, ...]
    """Who must judge it: one, and after an accusation a jury too."""
    verdicts: dict[NodeId, Verdict] = field(default_factory=dict)
    outcome: str = ""
    """`upheld`, `forged`, `withheld`; `open` while nothing is decided, `lapsed` when nobody said in time."""
    settled_at: int = -1

    @property
    def key(self) -> Key:
        return self.update.claim.node, self.update.claim.sequence


@dataclass(frozen=True, slots=True)
class Expulsion:
    node: NodeId
    at: int
    """The position of the entry that decided it."""
    times: int
    """How often it was convicted so far."""
    why: str


class Docket:
    """Call `follow` whenever the log has grown; then read."""

    def __init__(self, spec: AuditSpec) -> None:
        self._spec = spec
        self._clear()

    def _clear(self) -> None:
        self.cases: dict[Key, Case] = {}
        self.standings = Standings()
        self.expelled: list[Expulsion] = []
        self._purse = Purse()
        self._open: dict[Key, Case] = {}
        self._scores: dict[int, tuple[int, ...]] = {}
        self._seals: list[int] = []
        self._words = 0
        self._rewound = -1

    def follow(self, view: RunView) -> None:
        """Take what is new in the log. After a rewind everything is read again, without what was undone."""
        if not self._spec.on:
            return
        if view.rewound_at != self._rewound:
            self._clear()
            self._rewound = view.rewound_at
        while True:
            step = view.path[len(self._seals)] if len(self._seals) < len(view.path) else None
            word = view.audit_words[self._words] if self._words < len(view.audit_words) else None
            if word is not None and (step is None or word[0] < step.position):
                self._words += 1
                self._heard(view, word[0], word[1])
            elif step is not None:
                self._sealed(view, step)
            else:
                return

    # --- what follows from it ------------------------------------------------------------------------------

    def screener(self, view: RunView, step: Step) -> NodeId | None:
        """Who looks at all updates of a seal."""
        beacon = view.hashes[step.position]
        drawn = lots(beacon, "screen", self._trusted(step, frozenset()), 1)
        return drawn[0] if drawn and auditable(step) else None

    def wants(self, view: RunView, word: Screening | Verdict) -> bool:
        """True if the log lacks just this member's word on this."""
        if isinstance(word, Verdict):
            case = self._open.get((word.author, word.sequence))
            drawn = case is not None and case.seal == word.at.position and word.node in case.auditors
            return case is not None and drawn and word.node not in case.verdicts
        step = view.step_at(word.at.position)
        last = bool(view.path) and step is view.path[-1]
        known = word.at.position in self._scores
        return step is not None and last and not known and self.screener(view, step) == word.node

    def duties(self, node: NodeId) -> list[Case]:
        """What this member must judge."""
        return [case for case in self._open.values() if node in case.auditors and node not in case.verdicts]

    def accused(self, node: NodeId) -> list[Case]:
        """Drawn claims of this member, whose private state others want to see."""
        return [case for case in self._open.values() if case.update.claim.node == node]

    # --- the log -------------------------------------------------------------------------------------------

    def _sealed(self, view: RunView, step: Step) -> None:
        before = view.path[len(self._seals) - 1] if self._seals else None
        self._seals.append(step.position)
        if before is not None and auditable(before) and auditable(step):
            self._draw(view, before, step)
        for update in step.updates:
            self.standings.worked(update.claim.node)
        for key, case in list(self._open.items()):
            if len(self._seals) - case.place > WINDOW:
                case.outcome = "lapsed"
                del self._open[key]

    def _draw(self, view: RunView, before: Step, step: Step) -> None:
        beacon = view.hashes[step.position]
        scores = self._scores.get(before.position) or (0,) * len(before.updates)
        updates = {update.claim.node: update for update in before.updates}
        claims = [
            Candidate(
                author=update.claim.node,
                sequence=update.claim.sequence,
                score=score,
                standing=self.standings.of(update.claim.node),
                upheld=self.standings.upheld(update.claim.node),
            )
            for update, score in zip(before.updates, scores, strict=True)
        ]
        for drawn in self._purse.draw(beacon, claims, self._spec.replays_micro):
            author = drawn.candidate.author
            auditors = lots(f"{beacon}/{author}", "judge", self._trusted(step, frozenset({author})), 1)
            if auditors:
                case = Case(
                    seal=before.position,
                    update=updates[author],
                    drawn_at=step.position,
                    place=len(self._seals),
                    aimed=drawn.aimed,
                    score=drawn.candidate.score,
                    auditors=auditors,
                    outcome="open",
                )
                self.cases[case.key] = self._open[case.key] = case

    def _trusted(self, step: Step, but: frozenset[NodeId]) -> list[NodeId]:
        """Who is here and may judge."""
        nodes = {update.claim.node for update in step.updates} - but
        return sorted(node for node in nodes if self.standings.of(node) >= FULL)

    def _heard(self, view: RunView, position: int, word: Screening | Verdict) -> None:
        if isinstance(word, Screening):
            step = view.step_at(word.at.position)
            if step is not None and self.screener(view, step) == word.node:
                self._scores.setdefault(word.at.position, word.scores)
            return
        case = self._open.get((word.author, word.sequence))
        if case is None or word.node not in case.auditors or word.node in case.verdicts:
            return
        case.verdicts[word.node] = word
        if word.outcome != "upheld" and len(case.auditors) == 1:
            self._call_jury(view, position, case)
        self._settle(position, case)

    def _call_jury(self, view: RunView, position: int, case: Case) -> None:
        index = len(self._seals) - 1
        out = frozenset({*case.auditors, case.update.claim.node})
        step = view.step_at(self._seals[index])
        here = self._trusted(step, out) if step is not None else []
        beacon = f"{view.hashes[position]}/{case.update.claim.node}"
        case.auditors += lots(beacon, "jury", here, self._spec.jury)

    def _settle(self, position: int, case: Case) -> None:
        outcome = decided(case.auditors, case.verdicts)
        if not outcome:
            return
        author = case.update.claim.node
        case.outcome, case.settled_at = outcome, position
        self._open.pop(case.key, None)
        if outcome == "upheld":
            self.standings.passed(author)
        else:
            (self.standings.forged if outcome == "forged" else self.standings.withheld)(author)
        for auditor, verdict in sorted(case.verdicts.items()):
            if (verdict.outcome == "upheld") != (outcome == "upheld"):
                self.standings.contradicted(auditor)
        # Claims from before it lost its seat are judged too, and cost it no second one.
        last = max((one.at for one in self.expelled if one.node == author), default=-1)
        if outcome != "upheld" and self.standings.of(author) < SEAT and case.seal > last:
            times = self.standings.convictions(author)
            why = f"audits found {times} of its claims {outcome}"
            self.expelled.append(Expulsion(author, position, times, why))


def decided(auditors: Sequence[NodeId], verdicts: dict[NodeId, Verdict]) -> str:
    """What most of the auditors found; "" while it is not clear. One word alone accuses, and does not convict."""
    found = [verdict.outcome for verdict in verdicts.values()]
    accusing = len(found) - found.count("upheld")
    if 2 * found.count("upheld") >= len(auditors):
        return "upheld"
    if accusing > 1 and 2 * accusing > len(auditors):
        return "forged" if 2 * found.count("forged") > accusing else "withheld"
    return ""


def auditable(step: Step) -> bool:
    """True for a seal whose claims begin from a state that the log leads to."""
    return step.graft is None and not step.pairs


def replayable(update: Update) -> str:
    """Why a claim cannot be run again from its plan and its committed state; "" if it can."""
    claim, work = update.claim, update.work
    if work is None or claim.merges:
        return "it took other versions on the way"
    batch = work.assignment.batch
    uneven = any(part.count % batch for part in claim.data)
    return "its samples are no whole steps" if uneven or claim.steps * batch != claim.samples else ""
