"""Members and hubs that lie: refused, and named where it can be told who it was."""

import msgspec
import numpy as np
import pytest

from shoal.secagg.collector import Stage
from shoal.secagg.member import Dealing, MaskedNumbers
from shoal.secagg.messages import (
    Agreed,
    Dealt,
    Envelopes,
    Keys,
    MaskAgreement,
    MaskHello,
    MaskReveal,
    Refusal,
)
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, parse, sign

from .group import Group, signed


def _why(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.why


# --- the hub lies -------------------------------------------------------------------------------------------


def test_a_hub_cannot_have_both_secrets_of_a_member_by_telling_two_stories() -> None:
    """The classic attack: one half of the group is told that the victim survived, the other that it dropped out."""
    group = Group(7)
    victim = group.nodes[6]
    group.until(Stage.AGREEMENTS)
    without = [node for node in group.nodes if node != victim]
    stories = {node: group.nodes if number < 3 else without for number, node in enumerate(without)}
    words = {node: signed(group.members[node].agree(story)) for node, story in stories.items()}
    for node in without:
        for shown in (
            list(words.values()),
            [words[node]] * 7,
            [w for n, w in words.items() if stories[n] == stories[node]],
        ):
            assert "it takes 5" in _why(group.members[node].reveal(shown))


def test_a_member_signs_one_list_of_survivors_only() -> None:
    group = Group(7)
    group.until(Stage.AGREEMENTS)
    node, others = group.nodes[0], group.nodes[:5]
    signed(group.members[node].agree(group.nodes))
    assert "not now" in _why(group.members[node].agree(others))


def test_agreements_that_are_forged_or_of_outsiders_count_for_nothing() -> None:
    group = Group(5, threshold=4)
    group.until(Stage.AGREEMENTS)
    words = {node: signed(group.members[node].agree(group.nodes)) for node in group.nodes}
    stranger = Identity(b"s" * 32)
    said = parse(words[group.nodes[1]].payload, MaskAgreement)
    assert said is not None
    forged = [sign(stranger, msgspec.structs.replace(said, node=node)) for node in group.nodes[1:]]
    own = [sign(stranger, msgspec.structs.replace(said, node=stranger.node))]
    reveal = group.members[group.nodes[0]].reveal([words[group.nodes[0]], *forged, *own])
    assert "1 signed this list" in _why(reveal)
    signed(group.members[group.nodes[0]].reveal(list(words.values())))


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_survivors_are_not_agreed_to(count: int) -> None:
    group = Group(6)
    group.until(Stage.AGREEMENTS)
    node = group.nodes[0]
    assert "fewer than the 5" in _why(group.members[node].agree(group.nodes[:count]))


def test_a_member_that_was_left_out_or_shown_strangers_reveals_nothing() -> None:
    group = Group(7)
    group.until(Stage.AGREEMENTS)
    member = group.members[group.nodes[0]]
    assert "left this member out" in _why(member.agree(group.nodes[1:]))
    assert "not of those who dealt" in _why(member.agree([*group.nodes[:6], "f" * 40]))
    assert "not in order" in _why(member.agree([*group.nodes, group.nodes[-1]]))


def test_keys_of_an_earlier_round_are_refused() -> None:
    earlier, group = Group(5, round_number=1), Group(5, round_number=2)
    old = signed(earlier.members[earlier.nodes[1]].hello())
    hellos = [signed(group.members[node].hello()) for node in group.nodes]
    replayed = [hellos[0], old, *hellos[2:]]
    refusal = group.members[group.nodes[0]].deal(replayed)
    assert isinstance(refusal, Refusal) and refusal.node == group.nodes[1] and "another round" in refusal.why
    refused = group.hub.take_hello(group.nodes[1], old)
    assert refused is not None and refused.node == group.nodes[1]


def test_a_hub_cannot_put_its_own_keys_in_a_members_place() -> None:
    group = Group(5)
    hellos = [signed(group.members[node].hello()) for node in group.nodes]
    stranger = Identity(b"h" * 32)
    hello = parse(hellos[1].payload, MaskHello)
    assert hello is not None
    shown = [hellos[0], sign(stranger, hello), *hellos[2:]]
    assert "not signed by a member" in _why(group.members[group.nodes[0]].deal(shown))
    mine = group.identities[0]
    twin = sign(
        mine, MaskHello(session=hello.session, node=mine.node, pairing=hello.pairing, private=hello.private)
    )
    assert "other keys for this member" in _why(group.members[group.nodes[0]].deal([twin, *hellos[2:]]))


def test_two_members_with_the_same_key_are_refused() -> None:
    group = Group(4)
    hellos = [signed(group.members[node].hello()) for node in group.nodes]
    other = parse(hellos[0].payload, MaskHello)
    assert other is not None
    copier = group.identities[1]
    copied = sign(copier, msgspec.structs.replace(other, node=copier.node))
    shown = [hellos[0], copied, *hellos[2:]]
    assert "same key" in _why(group.members[group.nodes[2]].deal(shown))


def test_hellos_in_disorder_or_too_few_are_refused() -> None:
    group = Group(6)
    hellos = [signed(group.members[node].hello()) for node in group.nodes]
    member = group.members[group.nodes[0]]
    assert "not in order" in _why(member.deal([hellos[0], *hellos]))
    assert "4 said hello" in _why(member.deal(hellos[:4]))
    assert isinstance(member.deal(hellos), Dealing)


def test_deals_in_answer_to_other_hellos_are_refused() -> None:
    """A hub that shows different keys to different members is found out before any number leaves."""
    group = Group(6)
    hellos = [signed(group.members[node].hello()) for node in group.nodes]
    dealings = {}
    for number, node in enumerate(group.nodes):
        dealings[node] = group.members[node].deal(hellos if number else hellos[:5])
    deals = [one.signed for one in dealings.values() if isinstance(one, Dealing)]
    envelopes = {
        str(n): one.envelopes[group.nodes[1]] for n, one in dealings.items() if isinstance(one, Dealing)
    }
    refusal = group.members[group.nodes[1]].receive(deals, envelopes)
    assert refusal is not None and "other hellos" in refusal.why and refusal.node == group.nodes[0]


def test_envelopes_that_were_altered_are_refused() -> None:
    group = Group(5)
    group.until(Stage.NUMBERS)
    node, sender = group.nodes[0], group.nodes[2]
    told = group.hub.told(node)
    assert isinstance(told, Dealt)
    envelope = told.envelopes[sender]
    bad = Envelopes(envelope.half, envelope.shares[:-1] + bytes([envelope.shares[-1] ^ 1]))
    for shown in ({**told.envelopes, sender: bad}, {n: e for n, e in told.envelopes.items() if n != sender}):
        refusal = group.members[node].receive(told.deals, shown)
        assert refusal is not None and refusal.node == sender
    assert group.members[node].receive(told.deals, told.envelopes) is None


# --- members lie ------------------------------------------------------------------------------------------


def _reveal_of(group: Group, number: int) -> MaskReveal:
    told = group.hub.told(group.nodes[number])
    assert isinstance(told, Agreed)
    word = parse(signed(group.members[group.nodes[number]].reveal(told.agreements)).payload, MaskReveal)
    assert word is not None
    return word


def test_a_wrong_share_is_refused_and_its_giver_named_and_the_sum_is_found_without_it() -> None:
    group = Group(7)
    group.drop = {Stage.NUMBERS: {group.nodes[3]}}
    group.until(Stage.REVEALS)
    liar = group.identities[0]
    word = _reveal_of(group, 0)
    dealer = group.nodes[1]
    wrong = {**word.own, dealer: bytes([word.own[dealer][0] ^ 1]) + word.own[dealer][1:]}
    refused = group.hub.take_reveal(liar.node, sign(liar, msgspec.structs.replace(word, own=wrong)))
    assert refused is not None and refused.node == liar.node and dealer[:12] in refused.why
    swapped = msgspec.structs.replace(word, own=word.pairs, pairs=word.own)
    refused = group.hub.take_reveal(liar.node, sign(liar, swapped))
    assert refused is not None and "other members" in refused.why
    group.drop[Stage.REVEALS] = {liar.node}
    total = group.finish()
    assert np.array_equal(total.words, group.sum([n for n in group.nodes if n != group.nodes[3]]))


def test_too_few_reveals_give_no_sum() -> None:
    group = Group(6)
    group.until(Stage.REVEALS)
    for node in group.nodes[:4]:
        assert group.answer(node) is None
    refusal = group.hub.close()
    assert refusal is not None and "4 of 6 members answered with reveals; it takes 5" in refusal.why
    assert isinstance(group.hub.finish(), Refusal)


def test_numbers_that_are_not_those_that_were_signed_are_refused() -> None:
    group = Group(4)
    group.until(Stage.NUMBERS)
    node = group.nodes[0]
    told = group.hub.told(node)
    assert isinstance(told, Dealt)
    assert group.members[node].receive(told.deals, told.envelopes) is None
    masked = group.members[node].mask(group.words[node])
    assert isinstance(masked, MaskedNumbers)
    for numbers in (masked.numbers[:-4], bytes(len(masked.numbers)), masked.numbers + b"1234"):
        assert group.hub.take_numbers(node, masked.signed, numbers) is not None
    assert group.hub.take_numbers(group.nodes[1], masked.signed, masked.numbers) is not None
    assert group.hub.take_numbers(node, masked.signed, masked.numbers) is None
    assert group.hub.take_numbers(node, masked.signed, masked.numbers) is not None


def test_who_deals_an_envelope_that_does_not_open_is_named() -> None:
    """Its victim cannot mask and is missing from the sum; the victim's key then shows the hub whose envelope it was."""
    group = Group(7)
    group.until(Stage.DEALS)
    liar, victim = group.nodes[0], group.nodes[1]
    for node in group.nodes:
        told = group.hub.told(node)
        assert isinstance(told, Keys)
        dealing = group.members[node].deal(told.hellos)
        assert isinstance(dealing, Dealing)
        if node == liar:
            dealing = _spoilt(group, dealing, victim)
            group.members[liar]._dealt = b""
        assert group.hub.take_deal(node, dealing.signed, dealing.envelopes) is None
    assert group.hub.close() is None
    told = group.hub.told(victim)
    assert isinstance(told, Dealt)
    refusal = group.members[victim].receive(told.deals, told.envelopes)
    assert refusal is not None and refusal.node == liar
    group.drop = {Stage.NUMBERS: {victim}}
    group.until(Stage.SUM)
    failed = group.hub.finish()
    assert isinstance(failed, Refusal) and failed.node == liar


def _spoilt(group: Group, dealing: Dealing, victim: str) -> Dealing:
    from shoal.secagg.messages import MaskDeal

    word = parse(dealing.signed.payload, MaskDeal)
    assert word is not None
    envelopes = {
        n: Envelopes(bytes(1200), e.shares) if n == victim else e for n, e in dealing.envelopes.items()
    }
    digests = tuple(envelope.digest for envelope in envelopes.values())
    return Dealing(sign(group.identities[0], msgspec.structs.replace(word, envelopes=digests)), envelopes)


def test_outsiders_and_unsigned_words_are_refused_at_every_stage() -> None:
    stranger = Identity(b"o" * 32)
    group = Group(4)
    node, nothing = group.nodes[0], Signed(b"\x80", bytes(64))
    while group.hub.stage < Stage.SUM:
        for who in (stranger.node, node):
            takes = (
                group.hub.take_hello(who, nothing),
                group.hub.take_deal(who, nothing, {}),
                group.hub.take_numbers(who, nothing, b""),
                group.hub.take_agreement(who, nothing),
                group.hub.take_reveal(who, nothing),
            )
            assert all(isinstance(take, Refusal) for take in takes)
        for one in group.answering():
            assert group.answer(one) is None
        assert group.hub.close() is None
    total = group.hub.finish()
    assert not isinstance(total, Refusal) and np.array_equal(total.words, group.sum(group.nodes))


# --- a member that wants every round to fail ------------------------------------------------------------------


@pytest.mark.parametrize("trick", ["one key twice", "no key", "another's keys", "padded"])
def test_a_hello_that_would_fail_the_round_is_refused_alone(trick: str) -> None:
    group = Group(4)
    liar, other = group.nodes[0], group.nodes[1]
    good = {node: signed(group.members[node].hello()) for node in group.nodes}
    assert group.hub.take_hello(other, good[other]) is None
    mine, theirs = (parse(good[node].payload, MaskHello) for node in (liar, other))
    assert mine is not None and theirs is not None
    said = {
        "one key twice": msgspec.structs.replace(mine, private=mine.pairing),
        "no key": msgspec.structs.replace(mine, pairing=b"\xff" * len(mine.pairing)),
        "another's keys": msgspec.structs.replace(mine, pairing=theirs.pairing),
        "padded": mine,
    }[trick]
    identity = group.identities[0]
    word = sign(identity, said)
    if trick == "padded":
        # A map with one more field, `node` twice, of which the last counts.
        plain = word.payload
        padded = bytes([plain[0] + 1]) + b"\xa4node" + msgspec.msgpack.encode("x" * 10) + plain[1:]
        word = Signed(padded, identity.sign(MaskHello.__name__, padded))
        assert parse(word.payload, MaskHello) == mine
    refusal = group.hub.take_hello(liar, word)
    assert refusal is not None and refusal.node == liar
    assert group.hub.take_hello(liar, good[liar]) is None
