from __future__ import annotations

import pytest

from shoal.worlds.real.bench import measure_blob


def test_the_comparison_runs_between_two_processes() -> None:
    """That it works; how fast it is, is a benchmark's business."""
    result = measure_blob(3_000_000)
    assert result["size_bytes"] == 3_000_000
    assert result["ratio"] == pytest.approx(result["peer_mb_s"] / result["bare_mb_s"])


def test_nothing_is_not_a_blob() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        measure_blob(0)
