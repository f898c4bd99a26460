"""`shoal bench masks`: the fields that it promises, and sums that are exact."""

import pytest

from shoal.apps.bench.masks import measure
from shoal.base.errors import ShoalError


@pytest.mark.parametrize(("nodes", "dropouts"), [(3, 0), (7, 2), (10, 4), (16, 3)])
def test_the_sum_is_exact(nodes: int, dropouts: int) -> None:
    found = measure(nodes, dropouts, 1000, 0, 7, lambda text: None)
    assert found["exact"] is True
    assert (found["nodes"], found["dropouts"], found["survivors"]) == (nodes, dropouts, nodes - dropouts)
    assert 4000 < found["wire_bytes_per_node"] < 4000 + 5000 * nodes
    for name in ("seconds_per_node", "seconds_hub", "seconds_per_10m_parameters"):
        assert found[name] > 0


@pytest.mark.parametrize(("nodes", "dropouts", "threshold"), [(6, 3, 0), (8, 3, 6), (8, 0, 4)])
def test_what_cannot_be_recovered_is_said(nodes: int, dropouts: int, threshold: int) -> None:
    with pytest.raises(ShoalError, match="SH-BENCH-01"):
        measure(nodes, dropouts, 100, threshold, 0, lambda text: None)
