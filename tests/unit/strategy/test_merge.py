import pytest
import torch

from shoal.strategy.merge import MERGE_RULES, Mix


def test_mix_moves_a_share_and_keeps_progress() -> None:
    local, claimed, new = torch.tensor([5.0]), torch.tensor([4.0]), torch.tensor([8.0])
    merged = MERGE_RULES["mix"](alpha=0.25).merge(local, claimed, new)
    assert merged.anchor.tolist() == [5.0] and merged.local.tolist() == [6.0]
    whole = MERGE_RULES["mix"](alpha=1.0).merge(local, claimed, new)
    assert whole.anchor.tolist() == [8.0] and whole.local.tolist() == [9.0]


@pytest.mark.parametrize("alpha", [0, -0.1, 1.1, float("nan"), float("inf")])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        Mix(alpha)
