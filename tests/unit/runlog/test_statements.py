"""Every bound on what a node may state, from just inside and just outside."""

from typing import Any

import msgspec
import pytest

from shoal.base.ids import NodeId
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Claim, DataRange, MergeTaken, Stopped
from shoal.runlog.statements import (
    MAX_CLAIM_BYTES,
    MAX_MERGES,
    MAX_RANGES,
    MAX_RECEIPTS,
    MAX_WORD_BYTES,
    SPARE_BYTES,
    open_attestation,
    open_claim,
    open_receipt,
    open_receipts,
)
from shoal.runlog.view import ASSIGNMENTS_KEPT, RunView
from shoal.runlog.work import fair_weight
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, sign

from .small_log import (
    BATCH,
    COORDINATOR,
    NODES,
    OTHER_RUN,
    STEPS,
    STRANGER,
    Clerk,
    blob_id,
    make_attestation,
    make_claim,
    make_receipt,
)

A, B, C = NODES[:3]
SAMPLES = STEPS * BATCH
NUMEL = 16
"""Parameters of the small log's model."""


def _planned(rounds: int = 0) -> Clerk:
    """A round is open; in `rounds` earlier ones the first node was assigned work and claimed nothing."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B)
    for _ in range(rounds):
        clerk.plan(A, B)
        clerk.seal(B)
    clerk.plan(A, B)
    return clerk


def _opened(clerk: Clerk, /, **changes: Any) -> Claim:
    return open_claim(clerk.view, sign(A, make_claim(clerk.view, A, **changes)))


def _refused(clerk: Clerk, why: str, /, **changes: Any) -> None:
    with pytest.raises(BadEntry, match=why):
        _opened(clerk, **changes)


# --- claims ------------------------------------------------------------------------------------------------


def test_an_honest_claim_is_opened() -> None:
    assert _opened(_planned()).samples == SAMPLES


def test_size_follows_from_the_model() -> None:
    clerk = _planned()
    most = 8 * NUMEL + SPARE_BYTES
    assert _opened(clerk, size_bytes=most).size_bytes == most
    for size in (0, -1, most + 1, 2**62):
        _refused(clerk, "bytes for 16 parameters", size_bytes=size)


def test_tokens_follow_from_the_data() -> None:
    clerk = _planned()  # Its manifest has one token a sample.
    assert _opened(clerk, tokens=0).tokens == 0 and _opened(clerk, tokens=SAMPLES).tokens == SAMPLES
    for tokens in (-1, SAMPLES + 1, 2**62):
        _refused(clerk, "tokens on", tokens=tokens)


def test_a_step_has_at_least_a_sample() -> None:
    clerk = _planned()
    assert _opened(clerk, steps=SAMPLES).steps == SAMPLES
    for steps in (0, -1):
        _refused(clerk, "without work", steps=steps)
    for steps in (SAMPLES + 1, 2**62):
        _refused(clerk, "steps on", steps=steps)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_is_a_number(loss: float) -> None:
    _refused(_planned(), "no number", loss=loss)


@pytest.mark.parametrize("field", ["blob", "local_before", "local_after"])
@pytest.mark.parametrize(
    "value", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n"]
)
def test_a_hash_is_a_hash(field: str, value: str) -> None:
    _refused(_planned(), "malformed", **{field: value})


def test_merges_are_few() -> None:
    clerk = _planned(rounds=MAX_MERGES)
    merges = tuple(MergeTaken(i, 1) for i in range(MAX_MERGES))
    assert len(_opened(clerk, merges=merges).merges) == MAX_MERGES
    _refused(clerk, "merges", merges=(*merges, MergeTaken(MAX_MERGES, 1)))


@pytest.mark.parametrize(
    "merges",
    [[(3, 1), (2, 1)], [(2, 1), (2, 1)], [(2, 2), (3, 1)], [(-1, 1)], [(99, 1)], [(2, -1)], [(2, 4)]],
    ids=["backwards", "twice", "steps backwards", "before", "after", "no step", "after the work"],
)
def test_merges_are_of_this_log_and_in_order(merges: list[tuple[int, int]]) -> None:
    _refused(_planned(), "merges", merges=tuple(MergeTaken(*taken) for taken in merges))


def test_a_claim_is_short_whatever_fills_it() -> None:
    clerk = _planned()
    payload = sign(A, make_claim(clerk.view, A)).payload
    padding = bytes(MAX_CLAIM_BYTES + 1 - len(payload))
    long = Signed(payload + padding, A.sign("Claim", payload + padding))
    with pytest.raises(BadEntry, match="too long"):
        open_claim(clerk.view, long)


def test_data_ranges_are_few_whole_and_in_order() -> None:
    clerk = _planned()
    ones = tuple(DataRange(i, 1) for i in range(SAMPLES))
    assert len(_opened(clerk, data=ones).data) == SAMPLES <= MAX_RANGES
    _refused(clerk, "0 data ranges", data=())
    many = tuple(DataRange(0, 1) for _ in range(MAX_RANGES + 1))
    _refused(clerk, f"{MAX_RANGES + 1} data ranges", data=many, samples=MAX_RANGES + 1)
    _refused(clerk, "empty data range", data=(*ones, DataRange(SAMPLES, 0)))
    _refused(clerk, "counts samples again", data=ones[::-1])
    _refused(clerk, "counts samples again", data=(DataRange(0, 3), DataRange(2, 3)), samples=6)
    _refused(clerk, "not assigned", data=(DataRange(SAMPLES - 1, 2),), samples=2, steps=1)


def test_unclaimed_samples_of_earlier_rounds_may_be_carried() -> None:
    clerk = _planned(rounds=2)
    assigned = clerk.view.members[A.node].assigned
    data = tuple(assigned)
    assert len(_opened(clerk, data=data, samples=3 * SAMPLES, tokens=0).data) == 3
    _refused(clerk, "not assigned", data=data[:2], samples=2 * SAMPLES, tokens=0)


def test_ranges_that_touch_must_not_be_joined_over_assignments() -> None:
    """Alone in the run, a node's assignments touch; each range must still lie in one of them."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    clerk.plan(A)
    clerk.plan(A)
    whole = DataRange(0, 2 * SAMPLES)
    parts = (DataRange(0, SAMPLES), DataRange(SAMPLES, SAMPLES))
    _refused(clerk, "not assigned", data=(whole,), samples=2 * SAMPLES, tokens=0)
    assert _opened(clerk, data=parts, samples=2 * SAMPLES, tokens=0).data == parts


def test_what_was_counted_is_not_counted_again() -> None:
    clerk = _planned()
    before = clerk.view.planned[A.node][clerk.view.plan_position].data
    clerk.seal(A, B)
    clerk.plan(A, B)
    now = clerk.view.planned[A.node][clerk.view.plan_position].data
    _refused(clerk, "counts samples again", data=(before, now), samples=2 * SAMPLES, tokens=0)
    _refused(clerk, "counts samples again", data=(before,))


def test_a_slow_node_may_answer_the_first_of_many_plans() -> None:
    clerk = _planned()
    slow = sign(A, make_claim(clerk.view, A))
    for _ in range(2 * ASSIGNMENTS_KEPT):
        clerk.plan(A, B)
    assert open_claim(clerk.view, slow).node == A.node
    assert len(clerk.view.members[A.node].assigned) == ASSIGNMENTS_KEPT


def test_a_claim_weighs_its_samples_but_no_more_than_one_assignment() -> None:
    clerk = _planned(rounds=2)
    assignment = clerk.view.planned[A.node][clerk.view.plan_position]
    carried = make_claim(clerk.view, A, samples=3 * SAMPLES)
    assert fair_weight(carried, assignment) == SAMPLES
    assert fair_weight(make_claim(clerk.view, A, samples=1), assignment) == 1


def test_nobody_claims_after_the_stop() -> None:
    clerk = _planned()
    late = sign(A, make_claim(clerk.view, A))
    clerk.append(Stopped(reason="enough"))
    with pytest.raises(BadEntry, match="not in an open plan"):
        open_claim(clerk.view, late)


# --- receipts ----------------------------------------------------------------------------------------------


def _holders(view: RunView, *receipts: Signed) -> tuple[NodeId, ...]:
    return open_receipts(view, make_claim(view, A), receipts)


def _blob(view: RunView) -> Any:
    return make_claim(view, A).blob


def test_receipts_name_the_holders() -> None:
    view = _planned().view
    receipts = (make_receipt(COORDINATOR, _blob(view)), make_receipt(B, _blob(view)))
    assert _holders(view, *receipts) == (COORDINATOR.node, B.node)


@pytest.mark.parametrize("size_bytes", [99, 101, 0, -100])
def test_a_receipt_says_the_size_that_the_claim_says(size_bytes: int) -> None:
    view = _planned().view
    with pytest.raises(BadEntry, match="does not hold"):
        _holders(view, make_receipt(B, _blob(view), size_bytes=size_bytes))


def test_receipts_are_few() -> None:
    others = [Identity(bytes([i]) * 32) for i in range(MAX_RECEIPTS + 1)]
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, *others)
    clerk.plan(A, B)
    receipts = [make_receipt(one, _blob(clerk.view)) for one in others]
    assert len(_holders(clerk.view, *receipts[:-1])) == MAX_RECEIPTS
    with pytest.raises(BadEntry, match=f"{MAX_RECEIPTS + 1} storage receipts"):
        _holders(clerk.view, *receipts)


@pytest.mark.parametrize(
    "receipt",
    [
        make_receipt(STRANGER, blob_id("x")),
        make_receipt(B, blob_id("x"), run=OTHER_RUN),
        make_receipt(B, blob_id("x"), holder=C.node),
        make_receipt(B, blob_id("x" * MAX_WORD_BYTES), blob="b" * MAX_WORD_BYTES),
        sign(B, Stopped(reason="not a receipt")),
        Signed(b"", b""),
    ],
    ids=["a stranger's", "another run's", "in another's name", "too long", "another kind", "noise"],
)
def test_what_is_no_receipt_is_none(receipt: Signed) -> None:
    assert open_receipt(_planned().view, receipt) is None


# --- attestations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "short"},
        {"state": "X" * 64},
        {"snapshot": "short"},
        {"snapshot": "../" + "a" * 61},
        {"validation": float("nan")},
        {"validation": float("inf")},
        {"how": "guessed"},
        {"how": ""},
    ],
)
def test_a_malformed_word_is_refused(changes: dict[str, Any]) -> None:
    view = _planned().view
    with pytest.raises(BadEntry, match="malformed"):
        open_attestation(view, make_attestation(view, A, 0, "s", **changes))


def test_a_word_is_short_whatever_fills_it() -> None:
    view = _planned().view
    with pytest.raises(BadEntry, match="no member signed"):
        open_attestation(view, make_attestation(view, A, 0, "s", how="f" * MAX_WORD_BYTES))


def test_a_sound_word_is_opened() -> None:
    view = _planned().view
    changes = {"snapshot": blob_id("s"), "validation": -1.5, "how": "adopted"}
    word = open_attestation(view, make_attestation(view, A, 0, "s", **changes))
    assert msgspec.structs.asdict(word).items() >= changes.items()
