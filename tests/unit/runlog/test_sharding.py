"""Shards, their folders and their words: functions of the log that no single party can bend."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.base.layout import make_layout
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Digests, Folding, Plan, Rewind, Seal, Stopped
from shoal.runlog.sharding import EPOCH, agreed, cut, draw
from shoal.runlog.view import RunView, head_of, verify_log
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, sign

from .small_log import NODES, STRANGER, Clerk, blob_id

A, B, C, D = NODES[:4]
SIZES = st.lists(st.integers(1, 30_000), min_size=1, max_size=6)


# --- cutting and drawing ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, fragments=st.integers(1, 4), count=st.integers(1, 200))
def test_shards_cover_every_fragment_once(sizes: list[int], fragments: int, count: int) -> None:
    layout = make_layout([(f"t{i}", (size,)) for i, size in enumerate(sizes)], fragments)
    spans = cut(layout, tuple(range(len(layout.fragments))), count)
    assert [start for _, start, _ in spans] == [0, *(stop for _, _, stop in spans)][:-1]
    assert spans[-1][2] == layout.numel and all(start < stop for _, start, stop in spans)
    for index, start, stop in spans:
        assert layout.fragments[index].start <= start < stop <= layout.fragments[index].stop
    assert len(spans) <= count + len(layout.fragments)


def test_shards_are_about_as_long_as_each_other() -> None:
    layout = make_layout([("a", (1_000_000,)), ("b", (500_000,))], 2)
    spans = cut(layout, (0, 1), 60)
    lengths = sorted(stop - start for _, start, stop in spans)
    assert 55 <= len(spans) <= 62 and lengths[2] == lengths[-1], "all but the fragments' last"
    assert cut(layout, (1,), 60)[0][1] == layout.fragments[1].start, "of one fragment alone"


def _names(count: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"{i:064x}") for i in range(count))


SPANS = cut(make_layout([("a", (64 * 1024,))]), (0,), 64)


@settings(deadline=None, max_examples=60)
@given(nodes=st.integers(1, 80), folders=st.integers(1, 6), salt=st.text("ab", max_size=4))
def test_every_shard_has_its_folders_and_nobody_has_more_than_a_share(
    nodes: int, folders: int, salt: str
) -> None:
    drawn = draw(salt, SPANS, _names(nodes), folders)
    each = min(folders, nodes)
    assert all(len(set(names)) == len(names) == each for names in drawn)
    load = Counter(name for names in drawn for name in names)
    # A few more, where the last who are free have a shard already: 3 in the worst of all draws of up to 15 nodes.
    assert max(load.values()) <= -(-len(SPANS) * each // nodes) + 4


def test_one_member_less_leaves_most_folders_as_they_are() -> None:
    members = _names(32)
    before, after = draw("x", SPANS, members, 3), draw("x", SPANS, members[:-1], 3)
    kept = sum(one == other for one, other in zip(before, after, strict=True))
    assert kept >= 0.7 * len(SPANS), "its own six, and few others"
    assert sum(a == b for a, b in zip(before, draw("y", SPANS, members, 3), strict=True)) < 8, "a new epoch"


# --- the log ----------------------------------------------------------------------------------------------


def _plan(clerk: Clerk, *nodes: Identity, folders: int = 3, shards: int = 4) -> int:
    return clerk.append(clerk.plan_body(*nodes, folders=folders, shards=shards))


def _waiting(*nodes: Identity, folders: int = 3, shards: int = 4) -> Clerk:
    """A log whose last seal waits for digests."""
    clerk = Clerk()
    clerk.found()
    clerk.join(*nodes)
    _plan(clerk, *nodes, folders=folders, shards=shards)
    clerk.seal(*nodes)
    assert clerk.view.unsettled is not None
    return clerk


def _word(view: RunView, node: Identity, /, said: str = "right", **changes: Any) -> Folding:
    """What a node says of all shards that it was drawn for."""
    step = view.path[-1]
    mine = [n for n, shard in enumerate(step.shards) if node.node in shard.folders]
    items = tuple((n, blob_id(said, step.position, n), 10) for n in mine)
    word = Folding(run=view.run, node=node.node, at=head_of(view, step.position), items=items)
    return msgspec.structs.replace(word, **changes)


def _digests(view: RunView, *words: Signed, **changes: Any) -> Digests:
    step = view.path[-1]
    opened = [msgspec.msgpack.decode(word.payload, type=Folding) for word in words]
    body = Digests(seal=step.position, items=agreed(step, opened), words=words)
    return msgspec.structs.replace(body, **changes)


def _signed(view: RunView, *nodes: Identity, **changes: Any) -> list[Signed]:
    return [sign(node, _word(view, node, **changes)) for node in nodes]


def _settle(clerk: Clerk, *nodes: Identity) -> None:
    clerk.append(_digests(clerk.view, *_signed(clerk.view, *nodes)))


def test_a_seal_waits_for_its_digests_and_the_log_with_it() -> None:
    clerk = _waiting(A, B, C)
    for body in (clerk.plan_body(A), Stopped(reason="enough")):
        with pytest.raises(BadEntry, match="before the digests"):
            clerk.view.check(body)
    assert clerk.view.needed_blobs() >= {update.claim.blob for update in clerk.view.path[-1].updates}
    _settle(clerk, A, B, C)
    step = clerk.view.path[-1]
    assert clerk.view.unsettled is None and step.adopted and not step.folded_by_all
    assert {blob for blob, _, _ in step.sources} == {item.blob for item in step.digests or () if item}
    assert not clerk.view.needed_blobs() & {update.claim.blob for update in step.updates}
    clerk.append(clerk.plan_body(A))
    view, finding = verify_log(clerk.entries)
    assert finding is None and view.path == clerk.view.path


def test_without_words_everybody_folds_everything() -> None:
    clerk = _waiting(A, B, C)
    _settle(clerk)
    step = clerk.view.path[-1]
    assert step.settled and not step.adopted and step.folded_by_all == tuple(range(len(step.shards)))
    assert {blob for blob, _, _ in step.sources} == {update.claim.blob for update in step.updates}


@pytest.mark.parametrize(
    ("right", "wrong", "digested"),
    [("ABC", "", True), ("AB", "", True), ("A", "", False), ("AB", "C", False), ("C", "AB", False)],
)
def test_more_than_half_must_agree_and_nobody_dissent(right: str, wrong: str, digested: bool) -> None:
    clerk, who = _waiting(A, B, C), {"A": A, "B": B, "C": C}
    words = _signed(clerk.view, *(who[name] for name in right))
    words += _signed(clerk.view, *(who[name] for name in wrong), said="wrong")
    clerk.append(_digests(clerk.view, *words))
    step = clerk.view.path[-1]
    assert bool(step.adopted) == digested and bool(step.folded_by_all) != digested


def test_the_author_of_another_size_dissents_too() -> None:
    clerk = _waiting(A, B, C)
    other = _word(clerk.view, C)
    other = msgspec.structs.replace(other, items=tuple((n, blob, 11) for n, blob, _ in other.items))
    clerk.append(_digests(clerk.view, *_signed(clerk.view, A, B), sign(C, other)))
    assert not clerk.view.path[-1].adopted


def test_one_alone_decides_where_one_is_trusted() -> None:
    clerk = _waiting(A, B, C, folders=1)
    _settle(clerk, A, B, C)
    assert not clerk.view.path[-1].folded_by_all
    assert all(len(shard.folders) == 1 for shard in clerk.view.path[-1].shards)


def _bent(clerk: Clerk, kind: str) -> Digests:
    view = clerk.view
    step = view.path[-1]
    (a, b, c), word = _signed(view, A, B, C), _word(view, A)
    good = _digests(view, a, b, c)
    match kind:
        case "another seal":
            return _digests(view, a, seal=0)
        case "two words of one":
            return _digests(view, a, a, b)
        case "no member signed":
            return _digests(view, b, sign(STRANGER, msgspec.structs.replace(word, node=STRANGER.node)))
        case "not its own signature":
            return _digests(view, b, sign(C, word))
        case "an item that nobody signed":
            return _digests(view, a, items=good.items)
        case "an item less":
            return _digests(view, a, b, c, items=good.items[1:])
        case "another blob":
            other = msgspec.structs.replace(good.items[0], blob=blob_id("other"))
            return _digests(view, a, b, c, items=(other, *good.items[1:]))
        case "another run's word":
            return _digests(view, *_signed(view, A, run="0" * 32), b)
        case "an earlier head":
            return _digests(view, *_signed(view, A, at=head_of(view, step.position - 1)), b)
        case "twice the same shard":
            return _digests(view, sign(A, msgspec.structs.replace(word, items=word.items[:1] * 2)), b)
        case "no such shard":
            return _digests(view, sign(A, msgspec.structs.replace(word, items=((99, blob_id("x"), 1),))), b)
        case "no blob":
            return _digests(view, sign(A, msgspec.structs.replace(word, items=((0, "x", 1),))), b)
        case "too large":
            return _digests(
                view, sign(A, msgspec.structs.replace(word, items=((0, blob_id("x"), 1 << 40),))), b
            )
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("another seal", "does not wait"),
        ("two words of one", "two words"),
        ("no member signed", "no member signed"),
        ("not its own signature", "no member signed"),
        ("an item that nobody signed", "other digests than"),
        ("an item less", "other digests than"),
        ("another blob", "other digests than"),
        ("another run's word", "another seal"),
        ("an earlier head", "another seal"),
        ("twice the same shard", "not drawn for"),
        ("no such shard", "not drawn for"),
        ("no blob", "cannot be"),
        ("too large", "cannot be"),
    ],
)
def test_a_coordinator_cannot_bend_digests(kind: str, why: str) -> None:
    clerk = _waiting(A, B, C)
    with pytest.raises(BadEntry, match=why):
        clerk.view.check(_bent(clerk, kind))


def test_nobody_speaks_for_shards_that_others_fold() -> None:
    clerk = _waiting(A, B, C, D, folders=1, shards=16)
    own = {n for n, shard in enumerate(clerk.view.path[-1].shards) if A.node in shard.folders}
    assert 0 < len(own) < len(clerk.view.path[-1].shards)
    every = tuple((n, blob_id(n), 10) for n in range(len(clerk.view.path[-1].shards)))
    with pytest.raises(BadEntry, match="not drawn for"):
        clerk.view.check(_digests(clerk.view, *_signed(clerk.view, A, items=every)))


@pytest.mark.parametrize(
    "changes", [{"folders": 3}, {"shards": 3}, {"folders": -1, "shards": 3}, {"folders": 3, "shards": 10**6}]
)
def test_a_plan_names_folders_and_shards_or_neither(changes: dict[str, int]) -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    with pytest.raises(BadEntry, match="proper folding"):
        clerk.view.check(clerk.plan_body(A, **changes))


def test_a_round_has_one_cut() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B)
    _plan(clerk, A)
    with pytest.raises(BadEntry, match="other digests than the round's first plan"):
        clerk.view.check(clerk.plan_body(B))
    late = clerk.plan_body(B, folders=3, shards=4)
    member = msgspec.structs.replace(late.members[0], staleness=1)
    with pytest.raises(BadEntry, match="may come late"):
        clerk.view.check(msgspec.structs.replace(late, members=(member,)))
    clerk.append(late)


# --- residuals --------------------------------------------------------------------------------------------


def _since(clerk: Clerk) -> set[int]:
    return {shard.since for shard in clerk.view.path[-1].shards}


def _round(clerk: Clerk, *nodes: Identity, words: tuple[Identity, ...] | None = None) -> int:
    _plan(clerk, *nodes)
    position = clerk.seal(*nodes)
    _settle(clerk, *(nodes if words is None else words))
    return position


def test_a_residual_lives_where_all_its_folders_signed_one_digest() -> None:
    clerk = _waiting(A, B, C)
    assert _since(clerk) == {0}
    _settle(clerk, A, B, C)
    first = clerk.view.at
    second = _round(clerk, A, B, C)
    assert _since(clerk) == {first}
    _round(clerk, A, B, C, words=(A, B))
    assert _since(clerk) == {second}, "it was to be carried on"
    _round(clerk, A, B, C)
    assert _since(clerk) == {0}, "but the third did not sign, and may not have it"


@pytest.mark.parametrize("how", ["other folders", "folded by all", "a plain round", "a rewind"])
def test_a_residual_begins_anew(how: str) -> None:
    clerk = _waiting(A, B, C)
    _settle(clerk, A, B, C)
    first = clerk.view.at
    if how == "other folders":
        clerk.join(D)
        _round(clerk, A, B, D)
    elif how == "folded by all":
        _round(clerk, A, B, C, words=())
        _round(clerk, A, B, C)
    elif how == "a plain round":
        clerk.plan(A, B, C)
        clerk.seal(A, B, C)
        _round(clerk, A, B, C)
    else:
        _round(clerk, A, B, C)
        clerk.append(Rewind(to=first, reason="asked"))
        _round(clerk, A, B, C)
    assert _since(clerk) == {0}


def test_folders_are_drawn_anew_each_epoch() -> None:
    clerk, drawn = Clerk(), []
    clerk.found()
    clerk.join(*NODES)
    for _ in range(EPOCH + 1):
        clerk.append(clerk.plan_body(*NODES, folders=1, shards=16))
        clerk.seal(*NODES)
        drawn.append([shard.folders for shard in clerk.view.path[-1].shards])
        _settle(clerk, *NODES)
    assert all(same == drawn[0] for same in drawn[:EPOCH]) and drawn[EPOCH] != drawn[0]


def test_entries_of_before_are_read_as_ever() -> None:
    """Plans and seals without the new fields, as earlier versions wrote them."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    clerk.plan(A)
    clerk.seal(A)
    plan = msgspec.to_builtins(clerk.links[2].entry.body)
    seal = msgspec.to_builtins(clerk.links[3].entry.body)
    for name in ("folders", "shards"):
        del plan[name]
    assert msgspec.convert(plan, Plan).folders == 0
    assert isinstance(msgspec.convert(seal, Seal), Seal) and clerk.view.path[-1].settled
