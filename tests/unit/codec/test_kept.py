"""Codebooks of kept values."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from shoal.codec.kept import Codebooks

Floats = npt.NDArray[np.float32]


def _books(values: Floats, steps: int) -> Floats:
    """The codebook of one chunk."""
    payload = Codebooks(steps).encode(values, np.zeros(len(values), np.int64), 1)
    return (np.frombuffer(payload[: 2 * steps], "<u2").astype(np.uint32) << 16).view(np.float32)


def _values(scale: float, number: int = 128) -> Floats:
    drawn = np.random.default_rng(number).laplace(size=number)
    values: Floats = (drawn * scale).astype(np.float32)
    return values[values != 0]


@pytest.mark.parametrize("scale", [1e-43, 1e-39, 1e-20, 1.0, 1e20, 1e37])
def test_one_magnitude_is_the_mean(scale: float) -> None:
    values = _values(scale)
    exact = sum(Fraction(float(size)) for size in np.abs(values)) / len(values)
    (book,) = _books(values, 1)
    assert float(book) == pytest.approx(float(exact), rel=2**-8, abs=5e-41)


def test_values_much_smaller_than_the_largest_are_seen() -> None:
    values = np.array([1e5, *[1.0] * 127], np.float32)
    assert _books(values, 2).tolist() == pytest.approx([1.0, 1e5], rel=2**-8)


def test_the_largest_there_are_do_not_become_infinite() -> None:
    values = np.full(100, np.finfo(np.float32).max, np.float32)
    for steps in (1, 2):
        assert np.isfinite(_books(values, steps)).all()


def test_a_chunk_without_values_has_zeros() -> None:
    payload = Codebooks(2).encode(np.ones(8, np.float32), np.full(8, 2, np.int64), 4)
    assert np.frombuffer(payload[:16], "<u2").tolist() == [0, 0, 0, 0, 0, 0x3F80, 0, 0]
