"""Updates as whole numbers, masks, and shares: the arithmetic under a round."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.secagg.fixed import MOST, FixedPoint
from shoal.secagg.masks import Mask, apply, opposite
from shoal.secagg.shares import join, split


@given(
    limit=st.floats(1e-6, 1e6), members=st.integers(1, 128), values=st.lists(st.floats(-1e7, 1e7), min_size=1)
)
@settings(max_examples=200, deadline=None)
def test_the_sum_of_many_at_the_limit_does_not_overflow(
    limit: float, members: int, values: list[float]
) -> None:
    fixed = FixedPoint(limit, members)
    words = fixed.encode(torch.tensor(values))
    whole = words.view(np.int32).astype(object)
    assert all(abs(int(one)) * members <= MOST for one in whole)
    total = np.zeros(len(values), dtype=np.uint32)
    for _ in range(members):
        total += words
    assert [int(one) for one in total.view(np.int32)] == [int(one) * members for one in whole]


@given(limit=st.floats(1e-6, 1e6), members=st.integers(1, 128), part=st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_a_number_within_the_limit_comes_back_to_half_a_unit(limit: float, members: int, part: float) -> None:
    fixed, value = FixedPoint(limit, members), torch.tensor([limit * part])
    back = fixed.decode_mean(fixed.encode(value), 1)
    assert abs(float(back) - float(value)) <= fixed.unit / 2 + 1e-7 * abs(float(value))


def test_the_unit_is_fine_for_sixteen_members() -> None:
    assert FixedPoint(8.0, 16).unit == 2.0**-23


def test_numbers_beyond_the_limit_are_cut_to_it_and_never_wrap() -> None:
    fixed = FixedPoint(1.0, 4)
    assert fixed.decode_mean(fixed.encode(torch.tensor([5.0, -5.0, 3e38])), 1).tolist() == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ShoalError, match="SH-CODEC-01"):
        FixedPoint(1.0, 4).encode(torch.tensor([0.0, value]))


@pytest.mark.parametrize(("limit", "members"), [(0.0, 4), (math.nan, 4), (math.inf, 4), (1.0, 0), (1e-60, 4)])
def test_no_fixed_point_where_there_can_be_none(limit: float, members: int) -> None:
    with pytest.raises(ValueError, match="no fixed point"):
        FixedPoint(limit, members)


def test_masks_come_off_again_in_any_number_of_numbers() -> None:
    for size in (1, 65_535, 65_536, 65_537, 200_000):
        words = np.arange(size, dtype=np.uint32)
        masks = [Mask(bytes([number]) * 32, adds=number % 2 == 0) for number in range(3)]
        apply(words, masks)
        assert np.count_nonzero(words == np.arange(size)) < 2 + size // 1000
        apply(words, opposite(masks))
        assert np.array_equal(words, np.arange(size))


def test_a_seed_gives_the_same_stream_everywhere() -> None:
    """ChaCha20 with key 0 and nonce 0 begins with these bytes (RFC 8439, A.1, test vector 1)."""
    words = np.zeros(4, dtype=np.uint32)
    apply(words, [Mask(bytes(32), adds=True)])
    assert words.tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


@given(secret=st.binary(min_size=32, max_size=32), data=st.data(), places=st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_any_threshold_of_the_shares_gives_the_secret_back(
    secret: bytes, data: st.DataObject, places: int
) -> None:
    threshold = data.draw(st.integers(1, places))
    dealt = split(secret, threshold, range(1, places + 1), lambda size: bytes(range(1, size + 1)))
    chosen = data.draw(st.permutations(sorted(dealt)))[:threshold]
    assert join({place: dealt[place] for place in chosen}, threshold) == secret
    fewer = {place: dealt[place] for place in chosen[:-1]}
    assert join(fewer, threshold) is None
    if threshold > 1:
        assert join(fewer, threshold - 1) != secret


def test_hostile_shares_give_nothing_and_break_nothing() -> None:
    dealt = split(bytes(32), 2, [1, 2, 3], lambda size: b"\7" * size)
    for wrong in (b"", b"\xff" * 66, bytes(65), bytes(67)):
        assert join({1: dealt[1], 2: wrong}, 2) is None
    assert join({1: dealt[1], 2: dealt[3]}, 2) != bytes(32)
