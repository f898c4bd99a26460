"""Every registered aggregator and outer optimiser: what must hold whichever it is, and the simple ones against plain
Python, bit for bit."""

import itertools
import struct
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS, Gathering
from shoal.base.layout import make_layout
from shoal.codec import CHUNK, CODECS
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, encode_state, initial_state
from shoal.replica.update import encode_update

from .gatherings import combined, gathered
from .modest import modest

VALUES = st.floats(-1e6, 1e6, width=32)
ANY_FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
EVERY = sorted(AGGREGATORS)
Round = tuple[list[list[float]], list[int]]


def f32(value: float) -> float:
    """One IEEE rounding to single precision. A double's product or sum of singles, rounded so, is exact."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


@st.composite
def rounds(draw: st.DrawFn, values: st.SearchStrategy[float] = VALUES, least: int = 1) -> Round:
    count, size = draw(st.integers(least, 6)), draw(st.integers(1, 20))
    rows = st.lists(values, min_size=size, max_size=size)
    updates = draw(st.lists(rows, min_size=count, max_size=count))
    return updates, draw(st.lists(st.integers(1, 10**9), min_size=count, max_size=count))


def late(updates: list[list[float]], weights: list[int], momentum: float = 0.0) -> Gathering:
    """A round of updates that are all late, against a momentum that goes up and down: nobody is spared heloco."""
    against = torch.tensor([momentum * (-1) ** i for i in range(len(updates[0]))])
    return gathered(updates, weights, age=1, momentum=against)


def bits(values: torch.Tensor) -> bytes:
    return (values + 0.0).numpy().tobytes()  # Minus zero and zero are one.


@modest
@given(rounds())
def test_the_mean_is_what_plain_python_computes(case: Round) -> None:
    updates, weights = case
    shares = [f32(weight / sum(weights)) for weight in weights]
    expected = []
    for column in zip(*updates, strict=True):
        total = f32(column[0] * shares[0])
        for value, share in zip(column[1:], shares[1:], strict=True):
            total = f32(total + f32(value * share))
        expected.append(total)
    mean = combined("mean", gathered(updates, weights))
    assert mean.numpy().tobytes() == np.array(expected, "<f4").tobytes()


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(case=rounds(), random=st.randoms(use_true_random=False))
def test_order_matters_to_rounding_only(kind: str, case: Round, random: Random) -> None:
    updates, weights = case
    order = list(range(len(updates)))
    random.shuffle(order)
    plain = combined(kind, late(updates, weights, 1.0))
    mixed = combined(kind, late([updates[i] for i in order], [weights[i] for i in order], 1.0))
    scale = max(abs(value) for update in updates for value in update) or 1.0
    # Updates that nearly cancel leave a direction made of rounding, up to the root of six times as long.
    assert np.allclose(mixed, plain, rtol=0, atol=scale * 2e-5)


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(pair=st.lists(VALUES, min_size=2, max_size=2), third=VALUES, weight=st.integers(1, 50))
def test_two_equal_weights_commute_exactly(kind: str, pair: list[float], third: float, weight: int) -> None:
    one, two = [pair[0], third], [pair[1], -third]
    there = combined(kind, gathered([one, two], [weight, weight]))
    assert bits(there) == bits(combined(kind, gathered([two, one], [weight, weight])))


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(case=rounds(st.floats(-1000, 1000, width=16)), power=st.integers(-20, 20))
def test_twice_the_updates_are_twice_the_aggregate(kind: str, case: Round, power: int) -> None:
    """By powers of two, so exactly; the momentum they are compared with grows along."""
    updates, weights = case
    scaled = [[value * 2.0**power for value in update] for update in updates]
    there = combined(kind, late(updates, weights, 1.0)) * 2.0**power
    assert np.allclose(combined(kind, late(scaled, weights, 2.0**power)), there, rtol=1e-30, atol=1e-36)


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(case=rounds(), by=st.integers(1, 1000))
def test_only_the_proportion_of_weights_counts(kind: str, case: Round, by: int) -> None:
    updates, weights = case
    there = combined(kind, late(updates, weights, 1.0))
    assert bits(combined(kind, late(updates, [weight * by for weight in weights], 1.0))) == bits(there)


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(update=st.lists(VALUES, min_size=1, max_size=20), count=st.integers(1, 12))
def test_the_aggregate_of_identical_updates_is_that_update(
    kind: str, update: list[float], count: int
) -> None:
    found = combined(kind, gathered([update] * count, [3] * count)).numpy()
    assert np.allclose(found, np.array(update, "<f4"), rtol=(count + 2) * 2.0**-23, atol=1e-43)


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(case=rounds(st.floats(-1e3, 1e3, width=32)))
def test_half_of_the_fleet_moves_the_model_half_as_far(kind: str, case: Round) -> None:
    updates, weights = case
    half = combined(kind, gathered(updates, weights, whole=2 * sum(weights)))
    assert np.allclose(half * 2, combined(kind, gathered(updates, weights)), rtol=1e-6, atol=1e-3)


@modest
@given(rounds())
def test_where_all_send_all_the_mean_over_senders_is_the_mean(case: Round) -> None:
    gathering = gathered(*case)
    found, mean = combined("sender-mean", gathering), combined("mean", gathering)
    scale = max(abs(value) for update in case[0] for value in update)
    assert np.allclose(found, mean, rtol=0, atol=scale * 2e-6)


@modest
@given(rounds(least=3), st.floats(1.0, 1e30), st.integers(0, 5))
def test_one_update_moves_a_clipped_mean_by_no_more_than_its_share_of_the_bound(
    case: Round, factor: float, liar: int
) -> None:
    """However long it is made: it, and the median it shifts, count for at most twice the longest of the others."""
    updates, _ = case
    liar %= len(updates)
    others = [update for i, update in enumerate(updates) if i != liar]
    longest = max(float(np.linalg.norm(np.array(update, np.float64))) for update in others)
    lies = [value * factor for value in updates[liar]]
    # Those who change nothing have no say: without others it would be alone.
    assume(max(map(abs, lies)) < 3e38 and longest > 0)
    found = combined("clipped-mean", gathered([*others, lies]))
    without = combined("clipped-mean", gathered([*others, [0.0] * len(lies)]))
    moved = float(np.linalg.norm((found - without).double().numpy()))
    # Its own part is at most 2 x longest / n. The median may rise with it, which unclips others: at most as much each.
    assert moved <= 2 * longest * (1 + 1e-5)
    assert float(np.linalg.norm(found.double().numpy())) <= 2 * longest * (1 + 1e-5)


@pytest.mark.parametrize("kind", EVERY)
@modest
@given(case=rounds(ANY_FINITE), momentum=st.floats(0, 2.0**70, width=32))
def test_no_finite_updates_make_nan(kind: str, case: Round, momentum: float) -> None:
    updates, weights = case
    assert not torch.isnan(combined(kind, late(updates, weights, momentum))).any()


SIZE = CHUNK + 300
PAIRS = list(itertools.product(EVERY, sorted(OUTER_OPTIMIZERS)))


def folded(kind: str, outer: str, rows: list[torch.Tensor], times: int) -> State:
    parameters = {"freeze_after": 2, "beta1": 0.999} if outer == "onebit-adam" else {}
    rules = FoldRules(CODECS["none"](), AGGREGATORS[kind](), OUTER_OPTIMIZERS[outer](**parameters))
    layout = make_layout([("a", (CHUNK,)), ("b", (SIZE - CHUNK,))], 2)
    state = initial_state(layout, torch.linspace(-1, 1, SIZE), rules.outer.slots)
    parts = [(part.start, part.stop) for part in layout.fragments]
    blobs = [
        SealedBlob(
            encode_update([(i, rules.codec.encode(row[a:b])) for i, (a, b) in enumerate(parts)]),
            1 + number,
            (number % 2, 1),
        )
        for number, row in enumerate(rows)
    ]
    for _ in range(times):
        done = fold(state, (0, 1), blobs, rules)
        assert done.void == ()
        state, rows = done.state, [-row for row in rows]
    return state


@pytest.mark.parametrize(("kind", "outer"), PAIRS)
def test_the_state_stays_finite_whatever_finite_values_come(kind: str, outer: str) -> None:
    largest = torch.full((SIZE,), 3.4e38)
    turned = largest * torch.tensor([1.0, -1.0]).repeat(SIZE // 2)
    smallest = torch.full((SIZE,), 1e-45)
    for rows in ([largest, turned, largest], [turned, -turned, smallest], [smallest] * 3, [largest * 0] * 2):
        state = folded(kind, outer, rows, times=6)
        assert all(bool(torch.isfinite(vector).all()) for vector in (state.params, *state.slots.values()))


@pytest.mark.parametrize(("kind", "outer"), PAIRS)
def test_threads_do_not_change_a_bit(kind: str, outer: str) -> None:
    random = torch.Generator().manual_seed(5)
    rows = [torch.randn(SIZE, generator=random) * 10.0**number for number in range(-2, 2)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(encode_state(folded(kind, outer, rows, times=3)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@modest
@given(
    st.floats(0.001, 2),
    st.floats(0, 0.999),
    st.lists(st.lists(VALUES, min_size=5, max_size=5), min_size=1, max_size=5),
)
def test_outer_steps_are_what_plain_python_computes(lr: float, mu: float, updates: list[list[float]]) -> None:
    sgd, nesterov = OUTER_OPTIMIZERS["sgd"](lr=lr), OUTER_OPTIMIZERS["nesterov"](lr=lr, momentum=mu)
    plain, params = torch.zeros(5), torch.zeros(5)
    slots = {"momentum": torch.zeros(5)}
    want_plain, want, momentum = [0.0] * 5, [0.0] * 5, [0.0] * 5
    rate, decay = f32(lr), f32(mu)
    for update in updates:
        sgd.step(plain, {}, torch.tensor(update), 0)
        nesterov.step(params, slots, torch.tensor(update), 0)
        for i, g in enumerate(update):
            want_plain[i] = f32(want_plain[i] - f32(g * rate))
            momentum[i] = f32(f32(momentum[i] * decay) + g)
            ahead = f32(g + f32(momentum[i] * decay))
            want[i] = f32(want[i] - f32(ahead * rate))
    for found, expected in ((plain, want_plain), (params, want), (slots["momentum"], momentum)):
        assert found.numpy().tobytes() == np.array(expected, "<f4").tobytes()
