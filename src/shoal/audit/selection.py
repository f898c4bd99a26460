"""Which claims are re-run, and by whom: the draw.

In flow a beacon, the claims of a seal with what is known of each, and what was spent so far; out flow those to re-run
and their auditors. Invariant: whole numbers and hashes only, so that everybody who reads the log draws the same; over
time no more claims are drawn than the rate allows, whatever the scores are.

Most draws go to the claims that stand out most, of all that there were lately; the rest fall anywhere, so that no
forgery is safe for looking ordinary. Newcomers and members of low standing stand out by that alone, and what is odd
counts for more of an author who was odd before: a forger is so time and again. Nobody has more than half of the aimed
draws: who is odd on purpose, and honest, draws no attention away from others for long.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import blake3

from shoal.audit.spec import MICRO
from shoal.audit.standing import NEW
from shoal.base.ids import NodeId

AIMED_PERCENT = 90
BAR_PERCENT = 140
"""So many claims stand out for each that may be re-run: rounds differ, and what is not spent finds nobody."""
REMEMBERED = 512
"""Claims that say what is usual, of all and of each author."""
MOST_SCORE = 8_000
_ODD_SCORE = 2_000
"""What a claim counts for at most in its author's usual oddness: one claim says little, however odd."""
_FEW_CLAIMS = 4
"""So many unsuspicious claims are taken for granted of everybody: of a few one can tell nothing."""
_DOUBLING = 133
"""An author that is usually so much odder than others has scores that count twice."""
_MOST_FACTOR = 4_000
"""Four times at most, in thousandths."""
_NOVELTY = 1_500
_DISTRUST = 4
_LATELY = 8
"""Of so many aimed draws, the latest, nobody has more than half."""
_SAVED_ROUNDS = 16
"""How many rounds' share of draws may be saved up for a worse one."""
_BORROWED = 2
"""So many draws may be taken from rounds to come, when a claim stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A claim that may be drawn."""

    author: NodeId
    sequence: int
    score: int = 0
    """How odd its update is, in thousandths of a standard deviation."""
    standing: int = NEW
    upheld: int = 0
    """How many audits its author has passed since it last failed one."""

    def priority(self, factor: int) -> int:
        """How much it stands out, where scores of its author count so many thousandths."""
        score = min(max(self.score, 0), MOST_SCORE) * factor // 1000
        return score + _NOVELTY // (1 + self.upheld) + _DISTRUST * max(0, NEW - self.standing)


@dataclass(frozen=True, slots=True)
class Drawn:
    candidate: Candidate
    aimed: bool
    """It stood out; otherwise chance alone chose it."""


@dataclass(frozen=True, slots=True)
class _Ranked:
    claim: Candidate
    priority: int


@dataclass(slots=True)
class Purse:
    """What is usual, and what may still be spent: on claims that stand out, and on any."""

    aimed_micro: int = 0
    any_micro: int = 0
    usual: deque[_Ranked] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The latest claims."""
    lately: deque[NodeId] = field(default_factory=lambda: deque(maxlen=_LATELY))
    """Whose claims stood out and were drawn."""

    def draw(self, beacon: str, claims: Sequence[Candidate], replays_micro: int) -> list[Drawn]:
        """The claims of a seal to re-run, when `replays_micro` of a million may be."""
        income = replays_micro * len(claims) * AIMED_PERCENT // 100
        rest = replays_micro * len(claims) - income
        self.aimed_micro = min(self.aimed_micro + income, _SAVED_ROUNDS * income + MICRO)
        self.any_micro = min(self.any_micro + rest, _SAVED_ROUNDS * rest + MICRO)
        factors = self._factors(claims)
        ranked = [_Ranked(claim, claim.priority(factors[claim.author])) for claim in claims]
        self.usual.extend(ranked)
        aimed = self._aim(beacon, ranked, replays_micro)
        found = [Drawn(claim, True) for claim in aimed]
        order = sorted(claims, key=lambda one: number(beacon, "any", one.author, one.sequence))
        for claim in order:
            if claim not in aimed and self.any_micro >= MICRO:
                self.any_micro -= MICRO
                found.append(Drawn(claim, False))
        return found

    def _factors(self, claims: Sequence[Candidate]) -> dict[NodeId, int]:
        """By author, what its scores count for, in thousandths: the odder its latest claims were, the more."""
        odd, count = Counter[NodeId](), Counter[NodeId]()
        for one in self.usual:
            odd[one.claim.author] += min(max(one.claim.score, 0), _ODD_SCORE)
            count[one.claim.author] += 1
        means = {claim.author: odd[claim.author] // (count[claim.author] + _FEW_CLAIMS) for claim in claims}
        middle = sum(means.values()) // max(1, len(means))
        return {
            author: min(1000 + 1000 * max(0, mean - middle) // _DOUBLING, _MOST_FACTOR)
            for author, mean in means.items()
        }

    def _aim(self, beacon: str, claims: Sequence[_Ranked], replays_micro: int) -> list[Candidate]:
        """Those that stand out, the oddest first, as far as the purse goes."""
        watched = {node for node, count in Counter(self.lately).items() if 2 * count >= _LATELY}
        bar = self._bar(replays_micro, watched)
        found = []
        for one in sorted(claims, key=lambda one: (-one.priority, number(beacon, "tie", one.claim.author))):
            if (
                one.priority >= bar
                and self.aimed_micro >= (1 - _BORROWED) * MICRO
                and one.claim.author not in watched
            ):
                self.aimed_micro -= MICRO
                found.append(one.claim)
        self.lately.extend(claim.author for claim in found)
        return found

    def _bar(self, replays_micro: int, watched: set[NodeId]) -> int:
        """The priority that a little more of the latest claims have than may be re-run; of those who are not watched
        as much as anybody may be already."""
        ordered = sorted(
            (one.priority for one in self.usual if one.claim.author not in watched), reverse=True
        )
        place = len(ordered) * replays_micro * AIMED_PERCENT * BAR_PERCENT // (100 * 100 * MICRO)
        return ordered[min(place, len(ordered) - 1)] if ordered else 0


def lots(beacon: str, purpose: str, nodes: Iterable[NodeId], count: int) -> tuple[NodeId, ...]:
    """So many of these, drawn by the beacon."""
    return tuple(sorted(set(nodes), key=lambda node: (number(beacon, purpose, node), node))[:count])


def number(*parts: object) -> int:
    """A number that a hash makes of these."""
    text = "/".join(map(str, ("shoal/audit", *parts)))
    return int.from_bytes(blake3.blake3(text.encode()).digest(length=8), "big")
