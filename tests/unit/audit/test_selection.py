"""The draw: within its means, aimed at what stands out, and the same for everybody."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from shoal.audit.selection import Candidate, Purse, lots
from shoal.audit.spec import MICRO, AuditSpec
from shoal.base.ids import NodeId

NODES = [NodeId(f"{number:040x}") for number in range(20)]
SPEC = AuditSpec(rate=0.05)


def _claims(round_number: int, scores: dict[int, int] | None = None) -> list[Candidate]:
    """Of ordinary members, with noise that differs by claim."""
    scores = scores or {}
    return [
        Candidate(
            author=node,
            sequence=round_number,
            score=scores.get(place, (place * 7919 + round_number * 104729) % 1000),
            standing=800,
            upheld=3,
        )
        for place, node in enumerate(NODES)
    ]


def _drawn(rounds: int, scores: dict[int, int] | None = None) -> list[tuple[int, NodeId, bool]]:
    purse = Purse()
    return [
        (number, one.candidate.author, one.aimed)
        for number in range(rounds)
        for one in purse.draw(f"beacon {number}", _claims(number, scores), SPEC.replays_micro)
    ]


def test_no_more_is_drawn_than_the_rate_allows() -> None:
    allowed = 400 * len(NODES) * SPEC.replays_micro / MICRO
    assert 0.5 * allowed < len(_drawn(400)) <= allowed + 3  # A few may be borrowed.
    assert len(_drawn(400, dict.fromkeys(range(20), 8000))) <= allowed + 3


def test_it_is_a_function_of_the_beacon() -> None:
    assert _drawn(50) == _drawn(50)
    purse = Purse()
    first = [len(purse.draw(f"another {n}", _claims(n), SPEC.replays_micro)) for n in range(50)]
    assert sum(first) > 0


def test_what_stands_out_is_drawn_and_nobody_is_safe() -> None:
    drawn = _drawn(800, {3: 5000})
    hits = Counter(author for _, author, _ in drawn)
    assert hits[NODES[3]] > 3 * max(count for node, count in hits.items() if node != NODES[3])
    assert len({author for _, author, aimed in drawn if not aimed}) > 10
    assert hits[NODES[3]] < 0.6 * len(drawn), "who is always odd, and honest, leaves others unwatched"


def test_in_any_fleet_a_few_draws_in_a_row_may_be_one_authors_and_half_are_others() -> None:
    for count in (6, 10, 20):
        purse, hits = Purse(), list[NodeId]()
        for number in range(600):
            claims = _claims(number, {3: 5000})[:count]
            drawn = purse.draw(f"beacon {number}", claims, SPEC.replays_micro)
            hits += [one.candidate.author for one in drawn if one.aimed]
        windows = [hits[first : first + 8].count(NODES[3]) for first in range(len(hits) - 8)]
        assert windows and max(windows) == 4, count


def test_newcomers_and_the_distrusted_come_before_others() -> None:
    old = Candidate(author=NODES[0], sequence=0, standing=800, upheld=5)
    new = Candidate(author=NODES[1], sequence=0)
    bad = Candidate(author=NODES[2], sequence=0, standing=60, upheld=0)
    assert bad.priority(1000) > new.priority(1000) > old.priority(1000)


def test_what_is_odd_counts_for_more_of_an_author_who_was_odd_before() -> None:
    purse = Purse()
    for number in range(20):
        purse.draw(f"before {number}", _claims(number, {3: 900 if number % 3 else 1900}), 0)
    purse.aimed_micro, purse.any_micro = -MICRO, -MICRO
    purse.lately.clear()
    for number in range(20):  # By chance alone, which of two equals comes first would change.
        again = _claims(20, {3: 2500, 7: 2500})
        assert [one.candidate.author for one in deepcopy(purse).draw(f"now {number}", again, 1)] == [NODES[3]]


def test_lots_are_fair_and_few() -> None:
    counts = Counter(node for number in range(2000) for node in lots(f"b{number}", "judge", NODES, 2))
    assert sum(counts.values()) == 4000 and 120 < min(counts.values()) <= max(counts.values()) < 280
    assert lots("b", "judge", NODES[:1], 3) == (NODES[0],)
