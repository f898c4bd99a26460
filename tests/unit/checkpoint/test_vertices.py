"""Vertices are what a log says: parents, shares, metrics, signatures."""

from __future__ import annotations

import msgspec
import pytest
from runlog.small_log import NODES, OTHER_RUN, Clerk, genesis_of, make_attestation, small_recipe, state_id

from shoal.base.errors import ShoalError
from shoal.checkpoint.dag import as_json, common_ancestor, make_dag
from shoal.checkpoint.picture import as_svg
from shoal.checkpoint.retention import kept_positions
from shoal.checkpoint.vertices import vertices_of
from shoal.runlog.entries import Attestations, Origin, Rewind
from shoal.strategy.recipe import Retention

A, B, C = NODES[:3]


def branched() -> Clerk:
    """Three saved states on a path, of which a rewind undid the third, and a fourth in its place."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    places = []
    for name, nodes in (("s1", (A, B)), ("s2", (A, B, C)), ("s3", (A,))):
        clerk.plan(*nodes)
        at = clerk.seal(*nodes)
        clerk.attest(at, name, *nodes)
        clerk.snapshot(at, state_id(name), A.node)
        places.append(at)
    clerk.append(Rewind(to=places[1], reason="worse"))
    clerk.plan(B)
    at = clerk.seal(B)
    word = make_attestation(clerk.view, B, at, "s4", validation=0.5)
    clerk.append(Attestations(items=(word,)))
    clerk.snapshot(at, state_id("s4"), B.node)
    return clerk


def test_parents_follow_the_path_and_a_rewind_leaves_a_branch() -> None:
    beginning, one, two, undone, last = vertices_of(branched().entries)
    assert beginning.parents == () and beginning.kind == "genesis"
    assert one.parents == (beginning.id,) and two.parents == (one.id,)
    assert undone.parents == (two.id,) and last.parents == (two.id,)
    assert [v.stands for v in (beginning, one, two, undone, last)] == [True, True, True, False, True]


def test_shares_are_of_the_work_since_the_parent() -> None:
    _, one, two, *_ = vertices_of(branched().entries)
    assert {c.node: c.share for c in one.contributors} == {A.node: 0.5, B.node: 0.5}
    assert {c.node: pytest.approx(1 / 3) for c in two.contributors} == {
        c.node: c.share for c in two.contributors
    }
    assert len(two.contributors) == 3


def test_a_quorum_is_more_than_two_thirds_by_count_or_by_stake() -> None:
    _, one, two, undone, last = vertices_of(branched().entries)
    assert one.quorum.part() == (2, 3) and not one.quorum.reached()
    assert one.quorum.reached("stake"), "the third member has done nothing yet"
    assert two.quorum.part() == (3, 3) and two.quorum.reached() and two.quorum.reached("stake")
    assert not undone.quorum.reached() and last.metrics.validation == 0.5


def test_a_dissenting_word_is_no_vote() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    clerk.plan(A)
    at = clerk.seal(A)
    clerk.attest(at, "right", A, B)
    clerk.attest(at, "wrong", C)
    clerk.snapshot(at, state_id("right"))
    _, vertex = vertices_of(clerk.entries)
    assert vertex.quorum.part() == (2, 3)
    assert {vote.node for vote in vertex.quorum.votes} == {A.node, B.node}


def test_an_altered_log_gives_no_vertices() -> None:
    entries = branched().entries
    entries[3] = entries[3][:-1] + bytes([entries[3][-1] ^ 1])
    with pytest.raises(ShoalError, match="entry 3"):
        vertices_of(entries)


def test_forks_and_merges_hang_on_their_parents() -> None:
    mine = vertices_of(branched().entries)
    origins = tuple(Origin(vertex=v.id, run=v.run, at=v.at, state=v.model, weight=0.5) for v in mine[3:])
    other = Clerk(run=OTHER_RUN)
    other.append(msgspec.structs.replace(genesis_of(small_recipe(name="merged")), origins=origins))
    (merged,) = vertices_of(other.entries)
    dag = make_dag([merged, *mine])
    assert merged.kind == "merge" and merged.weights == (0.5, 0.5)
    assert [v.id for v in dag.vertices][-1] == merged.id and dag.heads == [merged.id]
    assert common_ancestor(dag, mine[3], mine[4]) == mine[2].id
    assert set(dag.ancestors(merged)) == {v.id for v in dag.vertices}
    told = as_json(dag, stored={merged.id: True}, pinned=[mine[0].id])
    assert msgspec.json.decode(msgspec.json.encode(told)) == told
    assert [v["stored"] for v in told["vertices"]] == [False] * 5 + [True]
    assert told["vertices"][0]["pinned"] and told["edges"][-1][1] == merged.id
    picture = as_svg(dag)
    assert picture.count("<circle") == 6 and picture.count("<path") == 6


def test_a_vertex_is_found_by_the_beginning_of_its_id() -> None:
    dag = make_dag(vertices_of(branched().entries))
    wanted = dag.vertices[2]
    assert dag.find(wanted.id[:8]) is wanted
    for name in ("zzzz", wanted.id[:3], ""):
        with pytest.raises(ShoalError, match="SH-CKPT-01"):
            dag.find(name)
    with pytest.raises(ShoalError) as several:
        dag.find("")
    assert several.value.cause.startswith(f"{len(dag.vertices)} checkpoints begin with")
    assert "more letters" in several.value.next_step


def test_names_in_pictures_are_words_only() -> None:
    clerk = Clerk()
    clerk.found(small_recipe(name="<script>alert(1)</script>"))
    assert "<script>" not in as_svg(make_dag(vertices_of(clerk.entries)))


def test_retention_keeps_the_last_every_nth_and_the_best() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    losses = [0.9, 0.2, 0.8, 0.7, 0.6, 0.5]
    places = [0]
    for number, loss in enumerate(losses):
        clerk.plan(A)
        at = clerk.seal(A)
        clerk.append(
            Attestations(items=(make_attestation(clerk.view, A, at, f"s{number}", validation=loss),))
        )
        clerk.snapshot(at, state_id(f"s{number}"))
        places.append(at)
    plain = kept_positions(clerk.view, Retention())
    assert list(plain) == places[-2:]
    rules = Retention(last=2, every=3, best=1)
    assert set(kept_positions(clerk.view, rules)) == {places[0], places[3], places[6], places[5], places[2]}
