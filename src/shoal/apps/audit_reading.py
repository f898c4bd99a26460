"""A run's audits, from its log as it lies on this machine.

In flow a home, a store or a log file; out flow cases and standings, as fields and as lines. Invariant: nothing is
written, and nothing is taken from anywhere but the verified log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.apps.logs_checking import verified_view
from shoal.apps.logs_reading import FoundLog, find_log
from shoal.apps.printable import printable
from shoal.audit.docket import Case, Docket
from shoal.audit.standing import share_of
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe, recipe_in_log


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDocket:
    log: FoundLog
    view: RunView
    recipe: Recipe
    docket: Docket
    cases: tuple[Case, ...]
    """In the order in which they were drawn."""

    def name(self, node: NodeId) -> str:
        member = self.view.members.get(node)
        return f"{printable(member.name) if member else '?'} {node[:8]}"

    def case(self, number: int) -> Case:
        if not 1 <= number <= len(self.cases):
            raise ShoalError(
                "SH-AUDIT-01", f"there is no case {number}", f"there are {len(self.cases)}: shoal audit list"
            )
        return self.cases[number - 1]


def read_docket(
    home: Path | None, store: str | None, run: str, *, node: bool, file: Path | None = None
) -> FoundDocket:
    """Raises SH-API-02, SH-LOG-01 or SH-LOG-04."""
    log = find_log(home, store, run, node=node, file=file)
    view = verified_view(log)
    assert view.genesis is not None
    recipe = recipe_in_log(view.genesis.recipe)
    docket = Docket(recipe.audit)
    docket.follow(view)
    return FoundDocket(log=log, view=view, recipe=recipe, docket=docket, cases=tuple(docket.cases.values()))


def case_fields(found: FoundDocket, number: int) -> dict[str, Any]:
    case = found.case(number)
    claim = case.update.claim
    return {
        "case": number,
        "author": claim.node,
        "sequence": claim.sequence,
        "round": claim.round,
        "seal": case.seal,
        "drawn_at": case.drawn_at,
        "why": "it stood out" if case.aimed else "by chance",
        "score": case.score / 1000,
        "outcome": case.outcome,
        "blob": claim.blob,
        "private_state": claim.local_before,
        "auditors": list(case.auditors),
        "verdicts": [
            {
                "auditor": node,
                "outcome": word.outcome,
                "distance": word.distance,
                "tolerance": word.tolerance,
                "replayed": word.replayed,
            }
            for node, word in sorted(case.verdicts.items())
        ],
    }


def standing_fields(found: FoundDocket) -> list[dict[str, Any]]:
    standings = found.docket.standings
    return [
        {
            "node": node,
            "name": member.name,
            "standing": standings.of(node),
            "weight_share": share_of(standings.of(node)) / 1000,
            "audits_passed": standings.upheld(node),
            "convictions": standings.convictions(node),
            "banned_until_ms": found.view.bans[node][1].until_ms if node in found.view.bans else None,
        }
        for node, member in sorted(found.view.members.items())
    ]


def case_lines(found: FoundDocket) -> Iterator[str]:
    if not found.recipe.audit.on:
        yield f"run {found.view.run[:12]} has no audits: audit.rate is 0"
        return
    yield f"run {found.view.run[:12]}: audits for {found.recipe.audit.rate:.1%} more compute"
    yield f"{'case':>4}  {'seal':>6}  {'author':<24} {'why':<12} {'outcome':<9} judged by"
    for number, case in enumerate(found.cases, 1):
        judges = ", ".join(
            f"{found.name(node)} {word.distance:.2g}" for node, word in sorted(case.verdicts.items())
        )
        why = "it stood out" if case.aimed else "by chance"
        author = found.name(case.update.claim.node)
        yield f"{number:>4}  {case.seal:>6}  {author:<24} {why:<12} {case.outcome:<9} {judges}"
    yield "standing, of 1000:"
    for member in standing_fields(found):
        kept_out = "  banned" if member["banned_until_ms"] else ""
        passed = f"{member['audits_passed']} passed, {member['convictions']} convictions"
        yield f"  {found.name(NodeId(member['node'])):<24} {member['standing']:>4}  {passed}{kept_out}"


def case_words(found: FoundDocket, number: int) -> Iterator[str]:
    case = found.case(number)
    claim = case.update.claim
    yield f"case {number}: the claim of {found.name(claim.node)} for round {claim.round}, sealed at {case.seal}"
    yield f"  drawn at {case.drawn_at}, {'since it stood out' if case.aimed else 'by chance'}"
    yield f"  update {claim.blob}, begun from private state {claim.local_before}"
    for node in case.auditors:
        word = case.verdicts.get(node)
        told = (
            f"{word.outcome}, {word.distance:.3g} apart, {word.tolerance:g} allowed"
            if word
            else "said nothing"
        )
        yield f"  {found.name(node)}: {told}"
    yield f"  outcome: {case.outcome}"
    yield f"  check it here: shoal audit check {found.view.run[:12]} --case {number}"
