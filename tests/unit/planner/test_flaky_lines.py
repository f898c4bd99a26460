"""Lines that lose or fail have their updates leave in coded pieces, and the plan says so."""

from __future__ import annotations

import pytest

from shoal.planner.aware import decide

from .question import fact, node, question


@pytest.mark.parametrize("trouble", [{"loss": 0.03}, {"failed": 0.2}])
def test_a_flaky_line_sends_pieces(trouble: dict[str, float]) -> None:
    shares = decide(question(fact(0), fact(1, **trouble), fact(2))).shares
    assert [shares[node(number)].coded for number in range(3)] == [False, True, False]
    assert "flaky line" in shares[node(1)].reason and "flaky" not in shares[node(0)].reason
