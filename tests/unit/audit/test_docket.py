"""What verdicts come to."""

from __future__ import annotations

import pytest

from shoal.audit.docket import decided
from shoal.base.ids import NodeId, RunId
from shoal.runlog.entries import Head, Verdict

NODES = [NodeId(letter * 40) for letter in "abcde"]


def _words(*outcomes: str) -> dict[NodeId, Verdict]:
    return {
        node: Verdict(
            run=RunId("r"), node=node, at=Head(1, ""), author=NODES[-1], sequence=0, outcome=outcome
        )
        for node, outcome in zip(NODES, outcomes, strict=False)
    }


@pytest.mark.parametrize(
    ("panel", "outcomes", "expected"),
    [
        (1, ["upheld"], "upheld"),
        (1, ["forged"], ""),
        (3, ["forged"], ""),
        (3, ["forged", "forged"], "forged"),
        (3, ["forged", "upheld"], ""),
        (3, ["forged", "upheld", "upheld"], "upheld"),
        (3, ["forged", "forged", "upheld"], "forged"),
        (3, ["withheld", "withheld"], "withheld"),
        (3, ["withheld", "forged"], "withheld"),
        (3, ["withheld", "forged", "forged"], "forged"),
        (2, ["forged", "forged"], "forged"),
        (2, ["forged", "upheld"], "upheld"),
    ],
)
def test_a_majority_decides_and_never_one_word(panel: int, outcomes: list[str], expected: str) -> None:
    assert decided(NODES[:panel], _words(*outcomes)) == expected
