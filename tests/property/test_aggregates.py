"""Aggregators and outer optimisers against plain Python, bit for bit."""

import struct

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.aggregate import OUTER_OPTIMIZERS
from shoal.aggregate.mean import WeightedMean

from .modest import modest

VALUES = st.floats(-1e6, 1e6, width=32)


def f32(value: float) -> float:
    """One IEEE rounding to single precision. A double's product or sum of singles, rounded so, is exact."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Plain:
    def __init__(self, values: list[float]) -> None:
        self.values = torch.tensor(values, dtype=torch.float32)

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self.values[start:stop] * factor)


def mean_of(updates: list[list[float]], weights: list[int]) -> list[float]:
    size = len(updates[0])
    out, scratch = torch.empty(size), torch.empty(size)
    WeightedMean().begin([Plain(u) for u in updates], weights, size)(0, size, out, scratch)
    return out.tolist()


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[list[float]], list[int]]:
    count, size = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    rows = st.lists(VALUES, min_size=size, max_size=size)
    updates = draw(st.lists(rows, min_size=count, max_size=count))
    return updates, draw(st.lists(st.integers(1, 10**9), min_size=count, max_size=count))


@modest
@given(rounds())
def test_the_mean_is_what_plain_python_computes(case: tuple[list[list[float]], list[int]]) -> None:
    updates, weights = case
    shares = [f32(weight / sum(weights)) for weight in weights]
    expected = []
    for column in zip(*updates, strict=True):
        total = f32(column[0] * shares[0])
        for value, share in zip(column[1:], shares[1:], strict=True):
            total = f32(total + f32(value * share))
        expected.append(total)
    assert np.array(mean_of(updates, weights), "<f4").tobytes() == np.array(expected, "<f4").tobytes()


@modest
@given(rounds(), st.randoms(use_true_random=False))
def test_order_matters_to_rounding_only(case: tuple[list[list[float]], list[int]], random) -> None:  # type: ignore[no-untyped-def]
    updates, weights = case
    order = list(range(len(updates)))
    random.shuffle(order)
    mixed = mean_of([updates[i] for i in order], [weights[i] for i in order])
    scale = max(abs(value) for update in updates for value in update) or 1.0
    assert np.allclose(mixed, mean_of(updates, weights), rtol=0, atol=scale * 2e-6)


@modest
@given(st.lists(VALUES, min_size=2, max_size=2), VALUES, st.integers(1, 50))
def test_two_equal_weights_commute_exactly(pair: list[float], third: float, weight: int) -> None:
    one, two = [pair[0], third], [pair[1], -third]
    assert mean_of([one, two], [weight, weight]) == mean_of([two, one], [weight, weight])


@modest
@given(rounds(), st.integers(1, 1000))
def test_only_the_proportion_of_weights_counts(case: tuple[list[list[float]], list[int]], by: int) -> None:
    updates, weights = case
    assert mean_of(updates, [weight * by for weight in weights]) == mean_of(updates, weights)


@modest
@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(1, 12))
def test_the_mean_of_identical_updates_is_that_update(update: list[float], count: int) -> None:
    mean = np.array(mean_of([update] * count, [3] * count))
    assert np.allclose(mean, np.array(update, "<f4"), rtol=count * 2.0**-23, atol=1e-43)
    if count in (1, 2):
        assert np.allclose(mean, np.array(update, "<f4"), rtol=0, atol=1e-43)


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
        sgd.step(plain, {}, torch.tensor(update))
        nesterov.step(params, slots, torch.tensor(update))
        for i, g in enumerate(update):
            want_plain[i] = f32(want_plain[i] - f32(g * rate))
            momentum[i] = f32(f32(momentum[i] * decay) + g)
            ahead = f32(g + f32(momentum[i] * decay))
            want[i] = f32(want[i] - f32(ahead * rate))
    for found, expected in ((plain, want_plain), (params, want), (slots["momentum"], momentum)):
        assert found.numpy().tobytes() == np.array(expected, "<f4").tobytes()
