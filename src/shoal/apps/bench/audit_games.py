"""Games between a forger and the auditors: the real draw and the real standings, on measured scores.

In flow what was measured, and seeds; out flow how soon forgers were found, and what the audits cost. Invariant: a game
is a function of its seed; a claim counts as found only when it is drawn and its re-run is further off than the
tolerance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from shoal.apps.bench.audit_measuring import Measured, forgers_of
from shoal.audit.selection import Candidate, Purse
from shoal.audit.spec import AuditSpec
from shoal.audit.standing import Standings
from shoal.base.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    found_after: int | None
    """Rounds until the first forged claim was proved; None if none was."""
    claims: int
    replays: int
    forged: int
    """Claims that the forger forged until then."""


def play(seen: Measured, kind: str, spec: AuditSpec, share: float, rounds: int, seed: int) -> Played:
    """One forger, who forges this share of its claims, in a run of so many rounds. With kind "" everybody is honest."""
    chance = random.Random(f"shoal/audit/{kind}/{seed}")  # noqa: S311 (a game, no secret)
    count, measured = len(seen.honest[0]), len(seen.honest)
    nodes = [NodeId(f"{node:040x}") for node in range(count)]
    forgers = forgers_of(count)
    which, first = chance.randrange(len(forgers)), chance.randrange(measured)
    forger = forgers[which]
    purse, standings = Purse(), Standings()
    claims = replays = forged = 0
    for round_number in range(rounds):
        # Runs begin anywhere in the measured one, so that games differ in more than who forges and when.
        place = (first + round_number) % measured
        lies = bool(kind) and chance.random() < share
        lie = seen.forged[kind][place][which] if lies else None
        forged += lies
        scores = lie.scores if lie is not None else seen.honest[place]
        candidates = [
            Candidate(
                author=node,
                sequence=round_number,
                score=score,
                standing=standings.of(node),
                upheld=standings.upheld(node),
            )
            for node, score in zip(nodes, scores, strict=True)
        ]
        claims += count
        beacon = f"{kind}/{seed}/{round_number}"
        for drawn in purse.draw(beacon, candidates, spec.replays_micro):
            replays += 1
            mine = drawn.candidate.author == nodes[forger]
            if mine and lie is not None and lie.distance > spec.tolerance:
                return Played(found_after=round_number + 1, claims=claims, replays=replays, forged=forged)
            standings.passed(drawn.candidate.author)
        for node in nodes:
            standings.worked(node)
    return Played(found_after=None, claims=claims, replays=replays, forged=forged)
