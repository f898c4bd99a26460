"""Seals that leave the state as it is, and who meets whom in them."""

import pytest

from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Seal
from shoal.runlog.pairs import matching, meeting_of, pairs_since_fold
from shoal.runlog.view import Step

from .small_log import NODES, Clerk

A, B, C, D, E = NODES


def _clerk(*pairs: bool, nodes: tuple = NODES) -> Clerk:  # type: ignore[type-arg]
    """A log with one seal of everybody for each of these."""
    clerk = Clerk()
    clerk.found()
    clerk.join(*nodes)
    for in_pairs in pairs:
        clerk.plan(*nodes)
        clerk.append(clerk.seal_body(*nodes, pairs=in_pairs))
    return clerk


def _names(clerk: Clerk, step: Step) -> dict[str, str | None]:
    met = matching(clerk.view.hashes[step.position], step.updates)
    return {m.own.claim.node: m.other.claim.node if m.other else None for m in met}


def test_everybody_meets_one_other_and_the_odd_one_out_nobody() -> None:
    clerk = _clerk(True)
    partners = _names(clerk, clerk.view.path[-1])
    assert set(partners) == {node.node for node in NODES}
    alone = [node for node, other in partners.items() if other is None]
    assert len(alone) == 1
    assert all(partners[other] == node for node, other in partners.items() if other is not None)


def test_pairs_are_drawn_anew_by_every_seal() -> None:
    clerk = _clerk(*[True] * 12)
    drawn = {tuple(sorted(_names(clerk, step).items(), key=str)) for step in clerk.view.path}
    assert len(drawn) > 6


def test_a_pair_seal_moves_no_state_but_counts_as_a_round() -> None:
    clerk = _clerk(False, True, True, False)
    _, second, third, last = clerk.view.path
    assert [len(step.folded) for step in clerk.view.path] == [5, 0, 0, 5]
    assert last.totals.rounds == 4 and clerk.view.versions == [4, 4]
    assert [pairs_since_fold(clerk.view.path, end) for end in (0, 1, 2, 3, 4)] == [0, 0, 1, 2, 0]
    assert pairs_since_fold(clerk.view.path) == 0
    assert clerk.view.next_step(second.position) is third


def test_a_meeting_matters_until_the_models_are_averaged_or_the_node_has_claimed_again() -> None:
    clerk = _clerk(True)
    step = clerk.view.path[0]
    met = meeting_of(clerk.view, step, A.node)
    assert met is not None and met.own.claim.node == A.node
    clerk.plan(B, C)
    clerk.append(clerk.seal_body(B, C, pairs=True))
    assert meeting_of(clerk.view, step, A.node) == met, "it was not in the later one"
    assert meeting_of(clerk.view, step, B.node) is None
    clerk.plan(C, D)
    clerk.append(clerk.seal_body(C, D))
    assert meeting_of(clerk.view, step, A.node) is None
    assert meeting_of(clerk.view, clerk.view.path[-1], C.node) is None, "not in pairs"


def test_a_part_of_the_fleet_cannot_meet_in_pairs() -> None:
    clerk = _clerk(False)
    clerk.plan(A, B)
    body = clerk.seal_body(A, pairs=True, whole=12)
    with pytest.raises(BadEntry, match="pairs up late updates"):
        clerk.append(body)
    assert isinstance(body, Seal) and clerk.append(clerk.seal_body(A, whole=12))
