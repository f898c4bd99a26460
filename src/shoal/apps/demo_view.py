"""The demo's terminal: a live table where there is a terminal, plain lines where there is not.

In flow the HTTP API's answers; out flows text. Invariant: everything shown comes from the coordinator's API or
is something the demo itself did; bytes of a node that was restarted are counted over all its lives.
"""

from __future__ import annotations

import sys
from collections import deque
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shoal.apps.api.models import NodeStatus, RunStatus
from shoal.apps.node_status import show_count
from shoal.base.units import show_bytes, show_duration

PLAIN_EVERY_S = 5.0
BAR = 60
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"in": "green", "next": "cyan", "behind": "yellow", "silent": "red", "gone": "red"}


class Bytes:
    """Bytes up and down by node, though a restarted process counts from zero again."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self._now: dict[str, tuple[int, int]] = {}

    def take(self, nodes: list[NodeStatus]) -> None:
        for node in nodes:
            if node.up_bytes is None:
                continue
            name, now = node.name, (node.up_bytes, node.down_bytes or 0)
            old = self._now.get(name, (0, 0))
            if now < old:
                before = self._before.get(name, (0, 0))
                self._before[name] = (before[0] + old[0], before[1] + old[1])
            self._now[name] = now

    def of(self, name: str) -> tuple[int, int]:
        before, now = self._before.get(name, (0, 0)), self._now.get(name, (0, 0))
        return before[0] + now[0], before[1] + now[1]

    def total(self) -> tuple[int, int]:
        every = [self.of(name) for name in sorted(self._now)]
        return sum(up for up, _ in every), sum(down for _, down in every)


class View:
    """Use it in a `with` statement; `show` as often as there is news, `event` for what the demo does."""

    def __init__(self, budget_s: float) -> None:
        self.bytes = Bytes()
        self._budget_s = budget_s
        self._began = monotonic()
        self._events: deque[str] = deque(maxlen=5)
        self._plain_at = float("-inf")
        console = Console()
        self._live = Live(console=console, auto_refresh=False) if sys.stdout.isatty() else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def restart_clock(self) -> None:
        self._began, self._plain_at = monotonic(), 0.0

    def event(self, text: str) -> None:
        line = f"{show_duration(monotonic() - self._began)}  {text}"
        self._events.append(line)
        if self._live is None:
            print(f"  * {line}", flush=True)

    def show(self, status: RunStatus) -> None:
        self.bytes.take(status.nodes)
        elapsed_s = monotonic() - self._began
        if self._live is not None:
            self._live.update(self._picture(status, elapsed_s), refresh=True)
        elif status.state != "waiting" and elapsed_s - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = elapsed_s
            print(self._line(status, elapsed_s), flush=True)

    def _line(self, status: RunStatus, elapsed_s: float) -> str:
        up, down = self.bytes.total()
        states = " ".join(f"{node.name}:{_standing(node)}" for node in _by_name(status))
        return (
            f"{show_duration(elapsed_s):>5}  round {status.round:>3}  {_losses(status)}  "
            f"{_speed(status)}  up {show_bytes(up)}  down {show_bytes(down)}  {states}"
        )

    def _picture(self, status: RunStatus, elapsed_s: float) -> Panel:
        head = Text()
        head.append(f"round {status.round}", style="bold")
        head.append(f"   {_losses(status)}   {_speed(status)}   {status.waiting_for}")
        curve = Text(f"validation {_sparkline(_validations(status))}", style="magenta")
        done = min(1.0, elapsed_s / self._budget_s)
        full = int(BAR * done)
        clock = f"  {show_duration(elapsed_s)} of {show_duration(self._budget_s)}"
        bar = Text.assemble(("━" * full, "green"), ("━" * (BAR - full), "bright_black"), clock)
        events = [Text(line, style="yellow") for line in self._events]
        body = Group(head, curve, self._table(status), *events, bar)
        return Panel(body, title=f"shoal demo: {status.name}, {show_count(status.parameters)} parameters")

    def _table(self, status: RunStatus) -> Table:
        table = Table(box=None, pad_edge=False, expand=False)
        for name in ("node", "", "doing", "loss", "tokens/s", "up", "down"):
            table.add_column(name, justify="right" if name in ("loss", "tokens/s", "up", "down") else "left")
        for node in _by_name(status):
            up, down = self.bytes.of(node.name)
            inside = node.state == "in"
            table.add_row(
                node.name,
                Text(_standing(node), style=_COLOURS[node.state]),
                node.doing if inside else node.why,
                f"{node.loss:.3f}" if inside and node.loss else "-",
                show_count(int(node.tokens_per_s or 0)) if inside else "-",
                show_bytes(up),
                show_bytes(down),
            )
        return table


def _by_name(status: RunStatus) -> list[NodeStatus]:
    return sorted(status.nodes, key=lambda node: node.name)


def _standing(node: NodeStatus) -> str:
    return "in" if node.state == "in" else f"out ({node.state})"


def _losses(status: RunStatus) -> str:
    train, validation = status.train_loss, status.validation_loss
    return (f"loss {train:.3f}" if train is not None else "loss -") + (
        f"  validation {validation:.3f}" if validation is not None else "  validation -"
    )


def _speed(status: RunStatus) -> str:
    inside = [node.tokens_per_s or 0 for node in status.nodes if node.state == "in"]
    return f"{show_count(int(sum(inside)))} tokens/s"


def _validations(status: RunStatus) -> list[float]:
    return [row.validation_loss for row in status.losses if row.validation_loss is not None]


def _sparkline(values: list[float], width: int = 60) -> str:
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)
