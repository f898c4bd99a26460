import math

import pytest
import torch

from shoal.aggregate import AGGREGATORS

from .gatherings import combined, gathered

ALONG = torch.tensor([2.0, 0.0])


def _bent(update: list[float], momentum: torch.Tensor = ALONG, **parameters: float) -> list[float]:
    return combined("heloco", gathered([update], ages=[1], momentum=momentum), **parameters).tolist()


def test_what_goes_the_same_way_stays() -> None:
    assert _bent([3.0, 4.0]) == [3.0, 4.0]


def test_what_goes_against_the_momentum_is_shrunk_along_it() -> None:
    # cosine -0.6, confidence 5 / (5 + 0.3 x 2), so 0.5 x 0.6 x 5/5.6 of the -3 is taken away.
    assert _bent([-3.0, 4.0]) == pytest.approx([-3.0 * (1 - 0.3 * 5 / 5.6), 4.0])
    assert _bent([-3.0, 4.0], shrink=100.0, shrink_most=1.0) == pytest.approx([0.0, 4.0], abs=1e-6)
    assert _bent([-3.0, 4.0], shrink=100.0) == pytest.approx([-1.5, 4.0])


def test_what_goes_across_is_turned_at_its_length() -> None:
    turned = 4 / 4.6
    length = math.hypot(turned, 1 - turned)
    bent = _bent([0.0, 4.0])
    assert bent == pytest.approx([4 * turned / length, 4 * (1 - turned) / length])
    assert math.hypot(*bent) == pytest.approx(4.0)


def test_only_late_updates_are_corrected() -> None:
    gathering = gathered([[-3.0, 4.0], [-3.0, 4.0]], ages=[0, 2], momentum=ALONG)
    mixed = combined("heloco", gathering).tolist()
    assert mixed == pytest.approx([(-3.0 + _bent([-3.0, 4.0])[0]) / 2, 4.0])


@pytest.mark.parametrize("ages", [[0, 0], [3, 1]])
@pytest.mark.parametrize("momentum", [None, torch.zeros(2), torch.tensor([1e-45, 0.0])])
def test_without_lateness_or_momentum_it_is_the_mean(ages: list[int], momentum: torch.Tensor | None) -> None:
    gathering = gathered([[0.1, 0.7], [-0.3, 0.2]], [3, 4], ages=ages, momentum=momentum)
    assert torch.equal(combined("heloco", gathering), combined("mean", gathering))


def test_blocks_are_judged_one_by_one_across_chunks_and_a_short_end() -> None:
    numel, block = 2 * 32768 + 700, 1024
    update, momentum = torch.ones(numel), torch.ones(numel)
    update[block : 2 * block] = -1.0
    update[-100:] = -1.0  # of the 700 values of the last block, so that one agrees on the whole
    bent = combined("heloco", gathered([update], ages=[1], momentum=momentum), block=block)
    same = torch.ones(numel, dtype=torch.bool)
    same[block : 2 * block] = False
    assert torch.equal(bent[same], update[same])
    assert torch.allclose(bent[~same], torch.full((block,), -1 + 0.5 / 1.3))


@pytest.mark.parametrize(
    "parameters", [{"aligned": 2.0}, {"shrink": -1.0}, {"turn": 1e9}, {"block": 100}, {"shrink_most": 1.5}]
)
def test_senseless_parameters_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        AGGREGATORS["heloco"](**parameters)


def test_it_says_what_it_needs() -> None:
    assert AGGREGATORS["heloco"]().reads == ("momentum",) and AGGREGATORS["mean"]().reads == ()
