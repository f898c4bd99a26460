"""A round from hello to sum: exact, whoever drops out when, as long as enough are left."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.secagg.collector import Collector, Stage
from shoal.secagg.member import MaskedNumbers, Member
from shoal.secagg.messages import Failed, Finished, MaskReveal, Refusal, Waiting
from shoal.secagg.terms import unsound, usual_threshold
from shoal.wire.signed import parse

from .group import Group, identities, signed, terms_of


def test_sixteen_members_and_three_dropouts_give_the_exact_sum() -> None:
    group = Group(16)
    gone = {group.nodes[number] for number in (0, 7, 15)}
    group.drop = {Stage.NUMBERS: gone}
    total = group.finish()
    left = [node for node in group.nodes if node not in gone]
    assert total.survivors == tuple(left)
    assert np.array_equal(total.words, group.sum(left))
    assert all(group.hub.told(node) == Finished() for node in group.nodes)


@given(st.lists(st.sampled_from([*list(Stage)[:5], None]), min_size=7, max_size=7))
@settings(max_examples=25, deadline=None)
def test_whoever_drops_out_when_the_sum_is_of_those_whose_numbers_came(when: list[Stage | None]) -> None:
    group = Group(7, threshold=4)
    for node, stage in zip(group.nodes, when, strict=True):
        if stage is not None:
            group.drop.setdefault(stage, set()).add(node)
    staying = [node for node, stage in zip(group.nodes, when, strict=True) if stage is None]
    if len(staying) < 4:
        failed = _play_to_the_end(group)
        assert failed is not None and "it takes 4" in failed.why
        assert isinstance(group.hub.told(group.nodes[0]), Failed)
        return
    total = group.finish()
    late = [stage is None or stage > Stage.NUMBERS for stage in when]
    assert total.survivors == tuple(node for node, came in zip(group.nodes, late, strict=True) if came)
    assert np.array_equal(total.words, group.sum(list(total.survivors)))


def _play_to_the_end(group: Group) -> Refusal | None:
    while group.hub.stage < Stage.SUM:
        for node in group.answering():
            assert group.answer(node) is None
        if refusal := group.hub.close():
            return refusal
    return None


def test_what_the_hub_holds_before_the_end_is_not_the_sum() -> None:
    group = Group(5)
    group.until(Stage.AGREEMENTS)
    assert np.count_nonzero(group.hub._sum == group.sum(group.nodes)) < 5


def test_masked_numbers_say_nothing_even_of_zeros() -> None:
    group = Group(4, numel=4096)
    group.words = {node: np.zeros(4096, dtype=np.uint32) for node in group.nodes}
    group.until(Stage.NUMBERS)
    node = group.nodes[0]
    told = group.hub.told(node)
    member = group.members[node]
    assert member.receive(told.deals, told.envelopes) is None  # type: ignore[union-attr]
    masked = member.mask(group.words[node])
    assert isinstance(masked, MaskedNumbers)
    ones = np.unpackbits(np.frombuffer(masked.numbers, dtype=np.uint8)).mean()
    assert 0.49 < ones < 0.51
    assert len(np.unique(np.frombuffer(masked.numbers, dtype="<u4"))) > 4090


def test_no_reveal_has_both_shares_of_anybody() -> None:
    group = Group(7)
    group.drop = {Stage.NUMBERS: {group.nodes[3]}}
    group.until(Stage.REVEALS)
    for node in group.answering():
        told = group.hub.told(node)
        word = parse(signed(group.members[node].reveal(told.agreements)).payload, MaskReveal)  # type: ignore[union-attr]
        assert word is not None
        assert set(word.pairs) == {group.nodes[3]}
        assert set(word.own) == set(group.nodes) - {group.nodes[3]}


def test_every_step_is_taken_once() -> None:
    group = Group(4)
    member = group.members[group.nodes[0]]
    assert isinstance(member.hello(), msgspec.Struct)
    assert isinstance(member.hello(), Refusal)
    assert isinstance(member.mask(group.words[group.nodes[0]]), Refusal)
    assert isinstance(member.agree(group.nodes), Refusal)
    assert isinstance(member.reveal([]), Refusal)


def test_whoever_has_answered_waits_and_counts_once() -> None:
    group = Group(4)
    node = group.nodes[0]
    hello = signed(group.members[node].hello())
    assert group.hub.take_hello(node, hello) is None
    assert isinstance(group.hub.told(node), Waiting)
    again = group.hub.take_hello(node, hello)
    assert again is not None and "already" in again.why


@pytest.mark.parametrize(("members", "threshold"), [(2, 2), (6, 3), (6, 7), (6, 0)])
def test_terms_that_protect_nobody_are_refused_by_both_sides(members: int, threshold: int) -> None:
    those = identities(members)
    terms = msgspec.structs.replace(terms_of(those), threshold=threshold)
    assert unsound(terms)
    assert isinstance(Member(those[0], terms).hello(), Refusal)
    with pytest.raises(ValueError, match="members"):
        Collector(terms)


def test_a_third_may_drop_out_and_a_third_may_collude() -> None:
    terms = terms_of(identities(16))
    assert (terms.threshold, terms.colluders) == (11, 5)
    assert [usual_threshold(count) for count in (3, 4, 6, 9)] == [3, 3, 5, 7]
