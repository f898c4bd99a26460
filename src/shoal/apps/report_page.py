"""The report's HTML: plots as SVG, tables, no script.

In flow what was gathered; out flows text. Invariant: pure; whatever comes from a run goes through `html.escape`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from shoal.apps.api.models import RunStatus
from shoal.apps.api.records import CheckpointGraph, CreditPage, EventRecord, RoundRecord
from shoal.apps.run_tables import trust_cells, trust_columns
from shoal.base.units import show_bytes, show_duration
from shoal.credit.spec import show_credits

Points = list[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 260, 60, 34
TONES, ROUNDS_LISTED = 3, 200


class Gathered(NamedTuple):
    """Everything that the report tells."""

    status: RunStatus
    rounds: list[RoundRecord]
    events: list[EventRecord]
    checkpoints: CheckpointGraph
    credit: CreditPage


def page(found: Gathered) -> str:
    """The whole file."""
    status, rounds = found.status, [item for item in found.rounds if not item.undone]
    name = _e(status.name)
    parts = [
        f"<h1>{name}</h1><p>Run <code>{_e(status.run)}</code>, {_e(status.state)}: "
        f"{_e(status.stopped or status.waiting_for)}</p>",
        _figures(status, rounds),
        *_plots(rounds),
        "<h2>Nodes</h2>" + _nodes(status, found.rounds),
        "<h2>Credit</h2>" + _credit(found.credit),
        "<h2>Saved states</h2>" + _checkpoints(found.checkpoints),
        f"<h2>Rounds</h2>{_rounds(found.rounds)}",
        "<h2>Events</h2>" + _events(found.events),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{name}: a Shoal run</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


def _figures(status: RunStatus, rounds: list[RoundRecord]) -> str:
    sealed = [item.sealed_ms for item in rounds if item.sealed_ms]
    seconds = (sealed[-1] - rounds[0].opened_ms) / 1000 if sealed else 0
    dense, sent = sum(i.dense_bytes for i in rounds), sum(i.update_bytes for i in rounds)
    facts = [
        ("rounds", str(len(sealed))),
        ("nodes", str(status.members)),
        ("parameters", f"{status.parameters:,}"),
        ("tokens", f"{status.tokens:,}"),
        ("time", show_duration(seconds)),
        ("tokens/s", f"{status.tokens / seconds:,.0f}" if seconds else "–"),
        ("updates", show_bytes(sent)),
        ("compression", f"{dense / sent:.1f}×" if sent else "–"),
        ("training loss", _number(status.train_loss)),
        ("validation loss", _number(status.validation_loss)),
    ]
    return "<dl>" + "".join(f"<div><dt>{_e(k)}</dt><dd>{_e(v)}</dd></div>" for k, v in facts) + "</dl>"


def _plots(rounds: list[RoundRecord]) -> list[str]:
    if not rounds:
        return ["<p>No round was sealed.</p>"]
    first, sent = rounds[0].opened_ms, 0
    axes: dict[str, list[float]] = {"steps": [], "minutes": [], "megabytes of updates": []}
    for item in rounds:
        sent += item.update_bytes
        axes["steps"].append(item.steps)
        axes["minutes"].append(((item.sealed_ms or first) - first) / 60_000)
        axes["megabytes of updates"].append(sent / 1e6)
    made = []
    for name, xs in axes.items():
        losses = {
            "training": [item.train_loss for item in rounds],
            "validation": [item.validation_loss for item in rounds],
        }
        lines = {
            what: [(x, loss) for x, loss in zip(xs, values, strict=True) if loss is not None]
            for what, values in losses.items()
        }
        made.append(f"<h2>Loss against {_e(name)}</h2>{plot(lines, name)}")
    return made


def plot(lines: dict[str, Points], x_name: str) -> str:
    """Lines over one axis, as SVG."""
    every = [point for points in lines.values() for point in points]
    if not every:
        return "<p>Nothing to draw.</p>"
    (x0, x1), (y0, y1) = _range(p[0] for p in every), _range(p[1] for p in every)

    def at(point: tuple[float, float]) -> str:
        x = LEFT + (point[0] - x0) / (x1 - x0) * (WIDTH - LEFT - 10)
        y = HEIGHT - BOTTOM - (point[1] - y0) / (y1 - y0) * (HEIGHT - BOTTOM - 14)
        return f"{x:.1f},{y:.1f}"

    parts = []
    for value in ticks(y0, y1):
        y = at((x0, value)).split(",")[1]
        parts.append(
            f'<path class="g" d="M{LEFT} {y}H{WIDTH - 10}"/><text x="{LEFT - 6}" y="{y}" class="y">{value:g}</text>'
        )
    for value in ticks(x0, x1):
        x = at((value, y0)).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" class="x">{value:g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        tone = f"c{number % TONES}"
        path = " ".join(at(point) for point in _thinned(points))
        parts.append(f'<polyline points="{path}" class="{tone}"/>')
        parts.append(f'<text x="{WIDTH - 14}" y="{24 + 16 * number}" class="l {tone}">{_e(name)}</text>')
    label = f"Loss against {x_name}"
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_e(label)}">{"".join(parts)}</svg>'
    return f'<div class="t">{drawn}</div>'


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    low, high = min(found), max(found)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between two others."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)]


def _thinned(points: Points, most: int = 1000) -> Points:
    stride = max(1, len(points) // most)
    return [*points[::stride], points[-1]] if points else []


def _nodes(status: RunStatus, rounds: list[RoundRecord]) -> str:
    counted: dict[str, list[int]] = {}
    for item in rounds:
        for update in item.accepted:
            mine = counted.setdefault(update.node, [0, 0])
            mine[0] += 1
            mine[1] += update.tokens
    trust = trust_columns(status.nodes)
    rows = [
        [n.name or n.node[:8], n.state, n.why, str(counted.get(n.node, [0, 0])[0]),
         f"{counted.get(n.node, [0, 0])[1]:,}", *trust_cells(n, trust), n.device, n.rejected or ""]
        for n in status.nodes
    ]  # fmt: skip
    return _table(["node", "state", "why", "updates", "tokens", *trust, "device", "last rejected"], rows)


def _credit(credit: CreditPage) -> str:
    rows = [[n.name or n.node[:8], show_credits(n.micro), f"{n.share:.1%}"] for n in credit.nodes]
    return f"<p>{_e(credit.policy)}</p>" + _table(["who", "credits", "share"], rows)


def _checkpoints(graph: CheckpointGraph) -> str:
    rows = [
        [str(c.at), str(c.round), _when(c.time_ms), show_bytes(c.size_bytes), c.state[:16],
         "yes" if c.stands else "undone"]
        for c in graph.checkpoints
    ]  # fmt: skip
    return _table(["at", "rounds", "saved", "size", "state", "stands"], rows)


def _rounds(rounds: list[RoundRecord]) -> str:
    rows = [
        [str(r.round), _when(r.sealed_ms), str(len(r.accepted)), str(len(r.late)),
         "; ".join(x.reason for x in r.rejected), _number(r.train_loss), _number(r.validation_loss),
         "undone" if r.undone else r.why_sealed]
        for r in rounds[-ROUNDS_LISTED:][::-1]
    ]  # fmt: skip
    head = ["round", "sealed", "in", "late", "rejected", "training", "validation", "why"]
    return _table(head, rows)


def _events(events: list[EventRecord]) -> str:
    rows = [[_when(e.time_ms), e.level, e.text, e.reason] for e in events]
    return _table(["when", "level", "what", "why"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    cells = "".join(f"<th>{_e(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="t"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _when(ms: int | None) -> str:
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _e(text: str) -> str:
    return html.escape(str(text), quote=True)


_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:.6rem}dl div{border:1px solid #8886;
border-radius:8px;padding:.4rem .7rem}dt{font-size:.8rem;opacity:.75}dd{margin:0;font-weight:600}
svg{width:100%;min-width:560px;height:auto}
svg text{font:12px system-ui;fill:currentColor}.y,.l{text-anchor:end}.x{text-anchor:middle}
.c0{--c:light-dark(#0b6e6e,#4dc3be)}.c1{--c:light-dark(#c2560a,#f3a261)}.c2{--c:light-dark(#5b3fa8,#b79ff0)}
svg .l{fill:var(--c);stroke:Canvas;stroke-width:4px;paint-order:stroke;font-weight:600}
.g{stroke:#8884}polyline{fill:none;stroke:var(--c);stroke-width:2}.t{overflow:auto}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8884;font-size:.9rem}
"""
