"""Why a node got what it got, in sentences.

In flow an account and a node; out flow lines of text. Invariant: every number in a sentence is a sum over the account's
lines or a field of the recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shoal.base.ids import NodeId
from shoal.credit.account import Account
from shoal.credit.lines import AUDIT, COORDINATE, HOLD, MISSED, REFUSED, TAKEN, TRAIN, UNDONE, Line
from shoal.credit.spec import CreditSpec, show_credits

_FACTORS = {
    "cap": "was cut to the most that one update may earn",
    "weight": "counted for less than its own weight, because it came late",
    "availability": "was of a node that had missed rounds before",
    "budget": "shared what was left of the run's budget",
}
_REMARKS = {
    REFUSED: "{n} of its updates were refused and earned nothing ({words})",
    MISSED: "it was given work in {n} rounds and sent nothing in time; under the rule `quality` later work earns less",
    UNDONE: "{n} of its updates were undone by a rewind; what they earned stays",
}


def policy(spec: CreditSpec, funded_micro: int = 0) -> str:
    """What the recipe pays for, in a sentence."""
    shares = [
        (100 - spec.others_percent, "whoever trained it"),
        (spec.hubs_percent, "those who hold it for others"),
        (spec.auditors_percent, "those who attest the result"),
        (spec.coordinator_percent, "the coordinator"),
    ]
    shared = ", ".join(f"{percent}% to {who}" for percent, who in shares if percent)
    unit = spec.unit.removesuffix("s")
    parts = [f"{show_credits(spec.price_micro)} credits for each {unit} that counted: {shared}"]
    if spec.rule == "quality":
        parts.append("less for late updates and after missed rounds")
    if spec.most_micro is not None:
        parts.append(f"at most {show_credits(spec.most_micro)} for an update")
    if spec.budget_micro is not None:
        parts.append(f"at most {show_credits(spec.budget_micro + funded_micro)} for the whole run")
    return "; ".join(parts)


def explain(account: Account, node: NodeId) -> Iterator[str]:
    """Everything that made up a node's balance."""
    lines = account.of(node)
    yield f"{_name(account, node)} earned {show_credits(sum(line.micro for line in lines))} credits."
    yield f"The run pays {policy(account.spec, account.funded_micro)}."
    for role, words in _ROLES.items():
        own = [line for line in lines if line.role == role]
        if own:
            yield words(own, account.spec)
            yield from _less(own)
    yield from _happened(account, node)
    if not lines and not account.remarks_on(node):
        yield "No update of it was sealed, and it held and attested nothing that was paid for."


def _trained(lines: list[Line], spec: CreditSpec) -> str:
    units, full = sum(line.units for line in lines), sum(line.full_micro for line in lines)
    share = f", of which {100 - spec.others_percent}% are its own" if spec.others_percent else ""
    return (
        f"It trained: {_count(len(lines), 'update')} counted in {_rounds(lines)}, with {units:,} {spec.unit}, "
        f"worth {show_credits(full)}{share}: {_sum(lines)}."
    )


def _held(lines: list[Line], spec: CreditSpec) -> str:
    held = sum(line.units for line in lines)
    return f"It held {_count(held, 'update')} of others, by its signed receipts: {_sum(lines)}."


def _audited(lines: list[Line], spec: CreditSpec) -> str:
    return f"It attested the state that most attested, {_count(len(lines), 'time')}: {_sum(lines)}."


def _coordinated(lines: list[Line], spec: CreditSpec) -> str:
    return f"It coordinated {_count(len(lines), 'seal')}: {_sum(lines)}."


def _taken(lines: list[Line], spec: CreditSpec) -> str:
    convicted = _count(sum(line.units for line in lines), "update")
    return f"Audits convicted {convicted} of it ({_rounds(lines)}), and took back what it had earned: {_sum(lines)}."


_ROLES = {TRAIN: _trained, HOLD: _held, AUDIT: _audited, COORDINATE: _coordinated, TAKEN: _taken}


def _less(lines: list[Line]) -> Iterator[str]:
    """Which of the lines are less than their full price, and why."""
    for name, words in _FACTORS.items():
        cut = [line for line in lines if any(f.name == name and f.part < f.whole for f in line.factors)]
        if cut:
            yield f"  Of these, {len(cut)} {words} ({_rounds(cut)})."


def _happened(account: Account, node: NodeId) -> Iterator[str]:
    remarks = account.remarks_on(node)
    for kind, template in _REMARKS.items():
        found = [remark for remark in remarks if remark.kind == kind]
        if found:
            reasons = Counter(remark.words for remark in found)
            words = "; ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
            yield f"Also, {template.format(n=len(found), words=words)}."


def _name(account: Account, node: NodeId) -> str:
    name = account.names.get(node)
    return f"{name} ({node[:12]})" if name else f"{node[:12]} (the coordinator)"


def _sum(lines: list[Line]) -> str:
    return f"{show_credits(sum(line.micro for line in lines))} credits"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rounds(lines: list[Line]) -> str:
    rounds = sorted({line.round for line in lines})
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    return f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"
