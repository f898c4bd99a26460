"""What `shoal top` shows fits the terminal, and what matters is never what is left out."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from shoal.apps.api.models import NodeStatus, RoundLoss, RunStatus, RunSummary
from shoal.apps.top import Seen
from shoal.apps.top_screen import plain_lines, whole_screen

REASON = "the privacy budget is spent: no node has another round within epsilon 8 (delta 1e-05)"


def _run(name: str, stopped: str | None) -> dict[str, Any]:
    return {
        "run": name * 8, "name": f"a long name of {name}" * 3, "state": "running", "round": 123, "rounds": 2000,
        "nodes_live": 40, "train_loss": 0.1, "validation_loss": 1.2345, "stopped": stopped, "waiting_for": "2 of 4",
    }  # fmt: skip


def _node(number: int, **known: Any) -> NodeStatus:
    return NodeStatus.model_construct(**{
        "node": f"{number:040}", "name": f"node {number} with a very long name", "state": "in", "why": "in the plan",
        "doing": "waiting for the seal", "step": 12345, "loss": 0.123, "tokens_per_s": 98765.0, "up_bytes": 1.2e12,
        "down_bytes": 987_654_321, "epsilon": None, "reputation": None, **known,
    })  # fmt: skip


def _seen(*nodes: NodeStatus) -> Seen:
    losses = [RoundLoss.model_construct(train_loss=2.0 / (number + 1)) for number in range(30)]
    run = {**_run("b", None), "parameters": 10**9, "tokens": 10**10, "update_bytes": 10**10, "losses": losses}
    runs = [RunSummary(**_run("a", REASON)), RunSummary(**_run("b", None))]
    return Seen(runs, RunStatus.model_construct(**run, nodes=list(nodes)))


def _lines(seen: Seen, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(whole_screen(seen, width, height))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_everything_that_matters_is_there_however_long_the_words(width: int) -> None:
    nodes = [_node(number, reputation=812, epsilon=7.97) for number in range(40)]
    lines = _lines(_seen(*nodes), width, 24)
    assert len(lines) <= 24 and all(len(line) <= width for line in lines)
    screen = "\n".join(lines)
    for told in (
        "aaaaaaaa",
        "bbbbbbbb",
        "running",
        "123/2000",
        "1.2345",
        "0.0667",
        "0.123",
        "812",
        "7.97",
        "more nodes",
    ):
        assert told in screen, screen


def test_what_a_run_does_not_keep_has_no_column() -> None:
    assert "REP" not in "".join(_lines(_seen(_node(1)), 80, 24))
    (header,) = (line for line in plain_lines(_seen(_node(1, reputation=7))) if line.startswith("node\t"))
    assert header.endswith("\twhy\treputation")


def test_a_pipe_gets_every_digit() -> None:
    assert "\t987654321\t" in plain_lines(_seen(_node(1)))[-1]
