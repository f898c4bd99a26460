"""The graph of checkpoints as a picture: time goes right, each branch has a lane.

In flows a graph; out flows SVG text that stands alone. Invariant: nothing in it but what the graph says, every word
escaped, since names are strangers' words.
"""

from __future__ import annotations

from html import escape

from shoal.checkpoint.dag import Dag
from shoal.checkpoint.vertices import Vertex

COLUMN, LANE, MARGIN, LEFT, TOP, RADIUS = 92, 78, 40, 230, 72, 11
LONGEST_NAME = 26
COLOURS = ("#2563eb", "#059669", "#d97706", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#db2777")
UNDONE = "#9ca3af"
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:11px;fill:#1f2937}"
    ".name{font-size:13px;font-weight:600}.small{font-size:10px;fill:#6b7280}"
    "path{fill:none;stroke-width:2}"
)


def as_svg(dag: Dag, title: str = "checkpoints") -> str:
    """The whole picture."""
    lanes, columns = _lanes(dag), _columns(dag)
    places = {v.id: (LEFT + columns[v.id] * COLUMN, TOP + lanes[v.id] * LANE) for v in dag.vertices}
    width = LEFT + MARGIN + COLUMN * (1 + max(columns.values(), default=0))
    height = TOP + MARGIN + LANE * (1 + max(lanes.values(), default=0))
    colours = {lane: COLOURS[lane % len(COLOURS)] for lane in lanes.values()}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text class="name" x="16" y="26">{escape(title)}</text>',
        f'<text class="small" x="{width - 16}" y="26" text-anchor="end">'
        "filled: a quorum signed; hollow: none did; grey: undone by a rewind</text>",
    ]
    for parent, child in dag.edges:
        colour = colours[lanes[child]] if dag.by_id[child].stands else UNDONE
        lines.append(_edge(places.get(parent), places[child], colour))
    lines += [_node(v, *places[v.id], colours[lanes[v.id]]) for v in dag.vertices]
    lines += _names(dag, lanes)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _lanes(dag: Dag) -> dict[str, int]:
    """A lane for each run, and one for each branch of it that a rewind left behind."""
    found: dict[tuple[str, str], int] = {}
    lanes: dict[str, int] = {}
    for vertex in dag.vertices:
        branch = "" if vertex.stands else _leaves_at(dag, vertex)
        lanes[vertex.id] = found.setdefault((vertex.run, branch), len(found))
    return lanes


def _leaves_at(dag: Dag, vertex: Vertex) -> str:
    """The vertex that an undone branch left its run at."""
    known, here = dag.by_id, vertex
    while not here.stands and here.parents and here.parents[0] in known:
        here = known[here.parents[0]]
    return here.id


def _columns(dag: Dag) -> dict[str, int]:
    """One column right of the furthest parent."""
    columns: dict[str, int] = {}
    for vertex in dag.vertices:
        columns[vertex.id] = 1 + max((columns.get(parent, -1) for parent in vertex.parents), default=-1)
    return columns


def _edge(begin: tuple[int, int] | None, end: tuple[int, int], colour: str) -> str:
    """A line from parent to child; a dotted stub where the parent is not here."""
    x, y = end
    if begin is None:
        return f'<path d="M{x - 34} {y}H{x - RADIUS}" stroke="{colour}" stroke-dasharray="3 4"/>'
    left, top = begin
    turn, bend = x - COLUMN + RADIUS, x - COLUMN // 2  # Along the parent's lane as far as it goes.
    way = f"M{left + RADIUS} {top}H{turn}C{bend} {top} {bend} {y} {x - RADIUS} {y}"
    return f'<path d="{way}" stroke="{colour}"/>'


def _node(vertex: Vertex, x: int, y: int, lane_colour: str) -> str:
    colour = lane_colour if vertex.stands else UNDONE
    fill = colour if vertex.quorum.reached() else "#ffffff"
    signed, of = vertex.quorum.part()
    told = (
        f"{vertex.id}\nrun {vertex.run_name}, position {vertex.at}\nmodel {vertex.model[:16]}\n"
        f"{signed} of {of} signed"
    )
    loss = vertex.metrics.validation if vertex.metrics.validation is not None else vertex.metrics.loss
    below = vertex.kind if not vertex.at else f"{vertex.metrics.rounds:g} rounds"
    value = "" if loss is None else f"loss {loss:.3f}"
    return (
        f'<g><title>{escape(told)}</title><circle cx="{x}" cy="{y}" r="{RADIUS}" fill="{fill}" stroke="{colour}"'
        f' stroke-width="2"/><text x="{x}" y="{y - 17}" text-anchor="middle">{escape(vertex.id[:8])}</text>'
        f'<text class="small" x="{x}" y="{y + 25}" text-anchor="middle">{escape(below)}</text>'
        f'<text class="small" x="{x}" y="{y + 37}" text-anchor="middle">{escape(value)}</text></g>'
    )


def _names(dag: Dag, lanes: dict[str, int]) -> list[str]:
    """Each lane's run, at its left."""
    first: dict[int, Vertex] = {}
    for vertex in dag.vertices:
        first.setdefault(lanes[vertex.id], vertex)
    lines = []
    for lane, vertex in sorted(first.items()):
        name = vertex.run_name if len(vertex.run_name) <= LONGEST_NAME else vertex.run_name[:25] + "…"
        y = TOP + lane * LANE
        lines.append(f'<text class="name" x="16" y="{y}">{escape(name)}</text>')
        about = f"run {vertex.run[:12]}" if vertex.stands else f"run {vertex.run[:12]}, undone"
        lines.append(f'<text class="small" x="16" y="{y + 14}">{escape(about)}</text>')
    return lines
