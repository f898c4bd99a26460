"""What `shoal top` shows.

In flow the API's answers and the terminal's size; out flow lines. Invariant: no more lines than fit, and
names of strangers are text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.apps.api.models import NodeStatus, RunStatus, RunSummary
from shoal.apps.printable import printable
from shoal.apps.run_tables import trust_cells, trust_columns
from shoal.base.errors import ShoalError
from shoal.base.units import show_bytes

if TYPE_CHECKING:
    from shoal.apps.top import Seen

_ORDER = {"silent": 0, "behind": 1, "in": 2, "next": 3, "gone": 4}
_STYLES = {"in": "green", "next": "cyan", "behind": "yellow", "silent": "red", "gone": "bright_black"}
_SPARKS = "▁▂▃▄▅▆▇█"
RUNS_SHOWN = 4
NAME_WIDTH = 20


def whole_screen(seen: Seen, width: int, height: int) -> RenderableType:
    """Runs above, one run's figures, its nodes below; as many as fit."""
    parts: list[RenderableType] = [_runs(seen.runs, width)]
    used = 1 + min(len(seen.runs), RUNS_SHOWN)
    run = seen.run
    if run is None:
        parts.append(Text("no runs yet: shoal run submit stdlib-gpt"))
        return Group(*parts)
    facts = _facts(run, width)
    parts += facts
    room = height - used - len(facts) - 3
    parts.append(_nodes(run.nodes, width, max(1, room)))
    hidden = len(run.nodes) - max(1, room)
    parts.append(Text(f"{f'{hidden} more nodes; ' if hidden > 0 else ''}Ctrl-C ends", style="dim"))
    return Group(*parts)


def trouble(error: ShoalError, width: int) -> RenderableType:
    lines = [
        f"error {error.code}",
        f"  {printable(error.cause, width)}",
        f"  {printable(error.next_step, width)}",
    ]
    return Group(
        *(Text(line, overflow="ellipsis", no_wrap=True) for line in [*lines, "", "asking again ..."])
    )


def _table(columns: Iterable[tuple[str, str]], rest: str) -> Table:
    """Every column as wide as it needs to be, and for the one named `rest` what is left."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="reverse", expand=True
    )
    for name, justify in columns:
        ratio = 1 if name == rest else None
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)  # type: ignore[arg-type]
    return table


def _runs(runs: Sequence[RunSummary], width: int) -> Table:
    table = _table([("RUN", "left"), ("NAME", "left"), ("STATE", "left"), ("ROUND", "right"), ("NODES", "right"),
                    ("LOSS", "right"), ("WAITING FOR", "left")], rest="WAITING FOR")  # fmt: skip
    shown = sorted(runs, key=lambda run: run.stopped is not None)[:RUNS_SHOWN]
    for run in shown:
        waiting = run.stopped or run.waiting_for
        cells = [run.run[:8], run.name, run.state, _rounds(run), str(run.nodes_live)]
        cells += [_number(run.validation_loss or run.train_loss, 4), waiting]
        table.add_row(*(_text(cell, NAME_WIDTH if cell is run.name else width) for cell in cells))
    return table


def _facts(run: RunStatus, width: int) -> list[RenderableType]:
    speed = sum(node.tokens_per_s or 0 for node in run.nodes if node.state in ("in", "next", "behind"))
    line = f"{run.parameters:,} parameters  {run.tokens:,} tokens  {show_bytes(run.update_bytes)} of updates"
    losses = [item.train_loss for item in run.losses if item.train_loss is not None]
    lately = f"  loss {spark(losses, 20)} {_number(losses[-1] if losses else None, 4)}" if losses else ""
    bar = progress(run.round, run.rounds, max(10, width - len(lately) - len(_rounds(run)) - len("[] ")))
    return [Text(), _text(f"{line}  {speed:,.0f} tokens/s", width), _text(f"{bar}{lately}", width), Text()]


def _nodes(nodes: Sequence[NodeStatus], width: int, room: int) -> Table:
    wide = width >= 110
    columns = [("NODE", "left"), ("STATE", "left"), ("DOING", "left"), ("STEP", "right"), ("LOSS", "right"),
               ("TOK/S", "right"), ("UP", "right"), ("DOWN", "right")]  # fmt: skip
    trust = trust_columns(nodes)
    columns += [(name[:3].upper(), "right") for name in trust]
    table = _table([*columns, ("WHY", "left")], rest="WHY") if wide else _table(columns, rest="DOING")
    ranked = sorted(nodes, key=lambda node: (_ORDER.get(node.state, 9), node.name, node.node))
    for node in ranked[:room]:
        cells = [
            _text(node.name or node.node[:8], NAME_WIDTH),
            Text(node.state, style=_STYLES.get(node.state, "")),
            _text(node.doing if node.state not in ("silent", "gone") else node.why, 28),
            _text(str(node.step or ""), 9),
            _text(_number(node.loss, 3), 9),
            _text(_number(node.tokens_per_s, 0), 9),
            _text(show_bytes(node.up_bytes) if node.up_bytes is not None else "", 9),
            _text(show_bytes(node.down_bytes) if node.down_bytes is not None else "", 9),
            *(_text(cell, 5) for cell in trust_cells(node, trust)),
        ]
        table.add_row(*cells, *([_text(node.why, width)] if wide else []))
    return table


def plain_lines(seen: Seen) -> list[str]:
    """The same for a pipe: tabs, no colours, everything."""
    lines = ["run\tname\tstate\tround\tnodes\ttrain\tvalidation\twaiting for"]
    for run in seen.runs:
        cells = [run.run, run.name, run.state, _rounds(run), str(run.nodes_live)]
        cells += [_number(run.train_loss, 4), _number(run.validation_loss, 4)]
        lines.append("\t".join(printable(cell, 1000) for cell in [*cells, run.stopped or run.waiting_for]))
    chosen = seen.run
    if chosen is None:
        return [*lines, "no runs yet: shoal run submit stdlib-gpt"]
    trust = trust_columns(chosen.nodes)
    columns = [
        "node",
        "name",
        "state",
        "doing",
        "step",
        "loss",
        "tokens/s",
        "up bytes",
        "down bytes",
        "why",
        *trust,
    ]
    lines += ["", "\t".join(columns)]
    for node in chosen.nodes:
        numbers = [node.step, node.loss, node.tokens_per_s, node.up_bytes, node.down_bytes]
        cells = [node.node, node.name, node.state, node.doing]
        cells += ["" if number is None else f"{number:.10g}" for number in numbers]
        cells += [node.why, *trust_cells(node, trust)]
        lines.append("\t".join(printable(cell, 1000) for cell in cells))
    return lines


def spark(values: list[float], width: int) -> str:
    """The last values as a line of blocks."""
    last = values[-width:]
    if len(last) < 2:
        return ""
    low, high = min(last), max(last)
    span = (high - low) or 1.0
    return "".join(_SPARKS[int((value - low) / span * (len(_SPARKS) - 1))] for value in last)


def progress(done: int, of: int | None, width: int) -> str:
    if not of:
        return f"round {done}"
    filled = min(width, width * done // of)
    return f"[{'#' * filled}{'.' * (width - filled)}] {done}/{of}"


def _rounds(run: RunSummary) -> str:
    return str(run.round) if run.rounds is None else f"{run.round}/{run.rounds}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _text(text: str, width: int) -> Text:
    return Text(printable(text, max(1, width)), no_wrap=True, overflow="ellipsis")
