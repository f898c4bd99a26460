"""Runs as tables in a terminal, and as plain lines in a pipe.

In flow the API's answers; out flows text. Invariant: NO_COLOR is respected, and a pipe gets neither colours
nor boxes nor lines cut to a width.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.apps.api.models import Attested, NodeStatus, PrivacyInfo, RunStatus, RunSummary
from shoal.apps.printable import printable
from shoal.base.units import show_bytes

LOSSES_SHOWN = 10
MAX_CELL = 1000
_PIPE_WIDTH = 10_000


def print_runs(runs: Sequence[RunSummary]) -> None:
    rows = [
        [
            run.run[:12],
            run.name,
            run.state,
            _rounds(run),
            str(run.nodes_live),
            _loss(run.train_loss),
            _loss(run.validation_loss),
            run.stopped or run.waiting_for,
        ]
        for run in runs
    ]
    _print_table(["run", "name", "state", "round", "nodes", "train", "validation", "waiting for"], rows)


def print_run(run: RunStatus) -> None:
    console = _console()
    attested = run.attested
    facts = [
        ("run", f"{run.run} ({run.name})"),
        ("state", f"{run.state}: {run.stopped or run.waiting_for}"),
        ("round", _rounds(run)),
        ("log", f"{run.head + 1} entries, head {run.head_hash[:16]}, term {run.term}"),
        ("model", f"{run.parameters:,} parameters"),
        ("trained", f"{run.tokens:,} tokens, {show_bytes(run.update_bytes)} of updates"),
        ("attested", _attested(attested) if attested else "nothing yet"),
        ("snapshot", f"position {run.snapshot.at}, {show_bytes(run.snapshot.size_bytes)}"),
    ]
    if run.privacy:
        facts.append(("privacy", _privacy(run.privacy)))
    for label, text in facts:
        console.print(f"{label:9} {_clean(text)}", markup=False, highlight=False)
    if run.nodes:
        console.print()
        columns = ["node", "name", "state", "why", "doing", "tokens/s", "up", "down"]
        _print_table([*columns, *trust_columns(run.nodes)], _nodes(run))
    if run.losses:
        console.print()
        rows = [
            [
                str(item.round),
                str(item.updates),
                _loss(item.train_loss),
                _loss(item.validation_loss),
            ]
            for item in run.losses[-LOSSES_SHOWN:]
        ]
        _print_table(["round", "updates", "train", "validation"], rows)
    for item in run.rejected[-LOSSES_SHOWN:]:
        line = f"rejected in round {item.round}: {item.node[:12]}: {item.reason}"
        console.print(_clean(line), markup=False, highlight=False)


def _attested(attested: Attested) -> str:
    return f"{attested.state[:16]} at position {attested.at} by {attested.by}"


def _privacy(privacy: PrivacyInfo) -> str:
    most = "counted" if privacy.epsilon is None else f"at most {privacy.epsilon:g}"
    return (
        f"epsilon {most} for each node (delta {privacy.delta:g}), by {privacy.unit}; "
        f"noise {privacy.noise:.3g} x clip {privacy.clip:g}"
    )


def _nodes(run: RunStatus) -> list[list[str]]:
    return [
        [
            node.node[:12],
            node.name,
            node.state,
            node.why,
            node.doing,
            "" if node.tokens_per_s is None else f"{node.tokens_per_s:,.0f}",
            "" if node.up_bytes is None else show_bytes(node.up_bytes),
            "" if node.down_bytes is None else show_bytes(node.down_bytes),
            *trust_cells(node, trust_columns(run.nodes)),
        ]
        for node in run.nodes
    ]


def trust_columns(nodes: Sequence[NodeStatus]) -> list[str]:
    """Those of reputation and privacy that a run keeps of its nodes."""
    return [
        name for name in ("reputation", "epsilon") if any(getattr(node, name) is not None for node in nodes)
    ]


def trust_cells(node: NodeStatus, columns: list[str]) -> list[str]:
    values = [getattr(node, name) for name in columns]
    return [
        "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
        for value in values
    ]


def _rounds(run: RunSummary) -> str:
    return f"{run.round}" if run.rounds is None else f"{run.round} of {run.rounds}"


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _console() -> Console:
    # Rich itself leaves colours out where NO_COLOR is set.
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_clean(cell) for cell in row))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Names come from strangers: they are text, never markup.
        table.add_row(*(Text(_clean(cell)) for cell in row))
    _console().print(table)


def _clean(text: str) -> str:
    return printable(text, MAX_CELL)
