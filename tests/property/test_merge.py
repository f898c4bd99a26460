import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.strategy.merge import MERGE_RULES, Here

from .modest import modest

VECTORS = hnp.arrays(np.float32, 8, elements=st.floats(-100, 100, width=32)).map(torch.from_numpy)
GRID = hnp.arrays(np.float32, 8, elements=st.integers(-512, 512).map(lambda n: n / 8)).map(torch.from_numpy)
"""Values whose sums and halves are exact, so that nothing is lost to rounding."""


@modest
@given(VECTORS, VECTORS, VECTORS)
def test_replace_starts_again(local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor) -> None:
    merged = MERGE_RULES["replace"]().merge(Here(local=local, anchor=claimed, known=claimed), new)
    assert torch.equal(merged.local, new) and torch.equal(merged.anchor, new)
    assert not MERGE_RULES["replace"]().keeps_progress
    merged.local.add_(1)
    assert torch.equal(merged.anchor, new), "training in place must not move the anchor"


@modest
@given(GRID, GRID, GRID, st.sampled_from([0.25, 0.5, 1.0]))
def test_the_next_update_counts_local_progress_and_nothing_merged(
    local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor, alpha: float
) -> None:
    before = [t.clone() for t in (local, claimed, new)]
    merged = MERGE_RULES["mix"](alpha=alpha).merge(Here(local=local, anchor=claimed, known=claimed), new)
    assert torch.equal(merged.anchor - merged.local, claimed - local)
    assert torch.equal(merged.anchor, claimed + alpha * (new - claimed))
    assert all(torch.equal(one, two) for one, two in zip((local, claimed, new), before, strict=True))


@modest
@given(VECTORS, VECTORS, VECTORS, st.floats(0.01, 1))
def test_mixing_any_values_is_off_by_rounding_only(
    local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor, alpha: float
) -> None:
    merged = MERGE_RULES["mix"](alpha=alpha).merge(Here(local=local, anchor=claimed, known=claimed), new)
    counted = (merged.anchor - merged.local) - (claimed - local)
    assert float(counted.abs().max()) <= 400 * 2.0**-22


@modest
@given(VECTORS, VECTORS, st.floats(0.01, 1))
def test_without_local_progress_nothing_is_counted(
    claimed: torch.Tensor, new: torch.Tensor, alpha: float
) -> None:
    merged = MERGE_RULES["mix"](alpha=alpha).merge(
        Here(local=claimed.clone(), anchor=claimed, known=claimed), new
    )
    assert torch.count_nonzero(merged.anchor - merged.local) == 0
