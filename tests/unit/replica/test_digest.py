"""The fold's way of a round: rounds of warm-up, the factor on the rate, and aggregates that go through a codec."""

import pytest
import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.base.layout import make_layout
from shoal.codec import CHUNK, CODECS, UNEQUAL_CODECS
from shoal.replica.fold import RESIDUAL, FoldRules, SealedBlob, fold
from shoal.replica.state import State, decode_state, encode_state, initial_state, state_hash
from shoal.replica.update import encode_update

LAYOUT = make_layout([("a", (CHUNK,)), ("b", (700,))], 2)
RANDOM = torch.Generator().manual_seed(3)
EQUAL = sorted(set(CODECS) - UNEQUAL_CODECS)


def _rules(
    digest: str | None = "one-bit", codec: str = "none", warmup: int = 0, lr: float = 1.0
) -> FoldRules:
    made = CODECS[digest]() if digest else None
    outer = OUTER_OPTIMIZERS["sgd"](lr=lr)
    return FoldRules(CODECS[codec](), AGGREGATORS["mean"](), outer, warmup, made)


def _begun(rules: FoldRules) -> State:
    return initial_state(LAYOUT, torch.zeros(LAYOUT.numel), rules.slots)


def _blob(values: torch.Tensor, codec: str = "none", fragments: tuple[int, ...] = (0, 1)) -> bytes:
    spans = [(index, LAYOUT.fragments[index]) for index in fragments]
    return encode_update([(i, CODECS[codec]().encode(values[p.start : p.stop])) for i, p in spans])


def _values() -> torch.Tensor:
    return torch.randn(LAYOUT.numel, generator=RANDOM)


@pytest.mark.parametrize("digest", EQUAL)
def test_what_a_digest_leaves_out_is_in_the_residual(digest: str) -> None:
    """With a plain step the parameters are what was decoded: together with the residual, all that came."""
    rules = _rules(digest)
    state, total = _begun(rules), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for place in range(5):
        updates = [_values(), _values()]
        total += torch.stack(updates).double().mean(dim=0)
        blobs = [SealedBlob(_blob(values), 1, place=place) for values in updates]
        state = fold(state, (0, 1), blobs, rules, place=place).state
        kept = state.slots[RESIDUAL].double() - state.params.double()
        assert torch.allclose(kept, total, atol=1e-4)
    assert digest == "none" or bool(state.slots[RESIDUAL].ne(0).any()), "it does lose something"


def test_a_digest_is_what_the_codec_makes_of_aggregate_and_residual() -> None:
    rules = _rules("int8")
    first, second = _values(), _values()
    state, residual = _begun(rules), torch.zeros(LAYOUT.numel)
    for place, values in enumerate((first, second)):
        before = state.params.clone()
        state = fold(state, (0, 1), [SealedBlob(_blob(values), 1)], rules, place=place).state
        wanted = values + residual
        decoded = torch.cat([_decoded("int8", wanted[part.start : part.stop]) for part in LAYOUT.fragments])
        residual = wanted - decoded
        assert torch.equal(state.params, before - decoded) and torch.equal(state.slots[RESIDUAL], residual)


def _decoded(codec: str, values: torch.Tensor) -> torch.Tensor:
    source = CODECS[codec]().open(memoryview(CODECS[codec]().encode(values)), values.numel())
    assert source is not None
    out = torch.empty_like(values)
    for start in range(0, values.numel(), CHUNK):
        stop = min(start + CHUNK, values.numel())
        source.decode(start, stop, 1.0, out[start:stop])
    return out


def test_the_residual_is_part_of_the_state_and_of_its_hash() -> None:
    rules = _rules()
    state = fold(_begun(rules), (0, 1), [SealedBlob(_blob(_values()), 1)], rules).state
    again = decode_state(encode_state(state), LAYOUT)
    assert torch.equal(again.slots[RESIDUAL], state.slots[RESIDUAL]) and state_hash(again) == state_hash(
        state
    )
    other = State(LAYOUT, state.params, {RESIDUAL: state.slots[RESIDUAL] + 1})
    assert state_hash(other) != state_hash(state)


def test_fragments_that_are_not_named_keep_their_residual_and_void_rounds_all() -> None:
    rules = _rules()
    state = fold(_begun(rules), (0, 1), [SealedBlob(_blob(_values()), 1)], rules).state
    part = LAYOUT.fragments[1]
    after = fold(state, (1,), [SealedBlob(_blob(_values(), fragments=(1,)), 1)], rules, place=1).state
    changed = torch.nonzero(after.slots[RESIDUAL] != state.slots[RESIDUAL]).flatten()
    assert len(changed) and int(changed.min()) >= part.start and int(changed.max()) < part.stop
    void = fold(state, (0, 1), [SealedBlob(b"noise", 1)], rules, place=1)
    assert void.void == (0,) and encode_state(void.state) == encode_state(state)


def test_what_a_digests_codec_cannot_hold_goes_by_it_whole() -> None:
    """fp16 ends at 65504: a round beyond it must not stop anybody, and loses nothing."""
    rules, huge = _rules("fp16"), torch.full((LAYOUT.numel,), 1e9)
    state = fold(_begun(rules), (0, 1), [SealedBlob(_blob(huge), 1)], rules).state
    assert torch.equal(state.params, -huge) and not bool(state.slots[RESIDUAL].any())


@pytest.mark.parametrize("digest", EQUAL)
def test_no_finite_updates_make_a_digest_that_is_not(digest: str) -> None:
    rules = _rules(digest)
    state, largest = _begun(rules), torch.full((LAYOUT.numel,), 3.4e38)
    turned = largest * torch.tensor([1.0, -1.0]).repeat(LAYOUT.numel // 2)
    for place in range(6):
        rows = [largest, turned] if place % 2 else [turned, -largest]
        blobs = [SealedBlob(_blob(row), 1, place=place) for row in rows]
        state = fold(state, (0, 1), blobs, rules, place=place).state
        assert bool(torch.isfinite(state.params).all() & torch.isfinite(state.slots[RESIDUAL]).all())


# --- warm-up -----------------------------------------------------------------------------------------------


def test_the_codec_of_an_update_is_that_of_its_plans_place() -> None:
    rules, values = _rules(None, "int8", warmup=3), _values()
    for place, sent in ((0, "none"), (2, "none"), (3, "int8"), (9, "int8")):
        other = "int8" if sent == "none" else "none"
        good, bad = (SealedBlob(_blob(values, kind), 1, place=place) for kind in (sent, other))
        assert fold(_begun(rules), (0, 1), [good], rules, place=9).void == ()
        assert fold(_begun(rules), (0, 1), [bad], rules, place=9).void == (0,)


def test_one_seal_may_bring_updates_of_both() -> None:
    rules, values = _rules(None, "int8", warmup=3), _values()
    early, late = SealedBlob(_blob(values), 1, place=2), SealedBlob(_blob(values, "int8"), 1, place=3)
    folded = fold(_begun(rules), (0, 1), [early, late], rules, place=4)
    assert folded.void == () and torch.allclose(folded.state.params, -values, atol=0.05)


def test_rounds_of_warm_up_make_no_digest() -> None:
    rules, values = _rules("one-bit", warmup=2), _values()
    for place in (0, 1):
        blob = SealedBlob(_blob(values), 1, place=place)
        state = fold(_begun(rules), (0, 1), [blob], rules, place=place).state
        assert torch.equal(state.params, -values) and not bool(state.slots[RESIDUAL].any())
    state = fold(_begun(rules), (0, 1), [SealedBlob(_blob(values), 1, place=2)], rules, place=2).state
    assert bool(state.slots[RESIDUAL].any())


def test_a_round_steps_by_its_rate() -> None:
    rules, values = _rules(None, lr=0.5), _values()
    state = fold(_begun(rules), (0, 1), [SealedBlob(_blob(values), 1)], rules, rate=0.25).state
    assert torch.equal(state.params, -(values * 0.125))
