"""The frontier: what a preset loses against what it sends, as a picture.

In flow rows of `shoal bench converge --json`, of one run or of many; out flow a PNG and an SVG. Invariant: a point's
height is the gap to its own synchronous twin, the mean over its seeds with their range; published methods are
marks of their bits only, since their gaps were measured on other models.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ShoalError

PUBLISHED = {
    "bf16 in sync": 16.0,
    "DiLoCo H=30": 1.07,
    "SparseLoCo": 0.029,
    "Covenant-72B": 0.0073,
}
"""Bits per parameter and inner step."""
COLOURS = {"adamw": "#1f6fb4", "muon": "#c1440e", "sgd": "#3a7d44"}
MOST = 1e9
"""Gaps and bits beyond this, or bits that are as many times fewer, are no measurements."""
LINEAR_PERCENT = 1.0
"""Below this the height is linear, above it logarithmic."""
PLACES = [(8, 6), (8, -14), (-8, 6), (-8, -14), (8, 18), (8, -26), (-8, 18), (-8, -26), (8, 30), (8, -38)]
"""Where a point's name may stand, in points of type, the best place first."""


class Row(msgspec.Struct, frozen=True):
    """What a point needs of a row."""

    preset: str
    inner: str
    gap: float
    bits_per_param_step: float
    label: str = ""


class _Rows(msgspec.Struct, frozen=True):
    runs: list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    label: str
    inner: str
    bits: float
    gaps: tuple[float, ...]
    """In percent, by seed."""

    @property
    def mean(self) -> float:
        return sum(self.gaps) / len(self.gaps)


def check_target(path: str) -> Path:
    """The PNG to write. Raises SH-DISK-02, before anything is measured, if it could not be."""
    target = Path(path)
    if target.suffix != ".png":
        raise ShoalError("SH-DISK-02", f"--plot {path} does not end in .png", "the SVG is written beside it")
    if not target.parent.is_dir():
        raise ShoalError("SH-DISK-02", f"--plot: there is no folder {target.parent}", "make it first")
    _check_writable(target)
    if importlib.util.find_spec("matplotlib") is None:
        raise ShoalError(
            "SH-DISK-02",
            f"{path} cannot be drawn: matplotlib is not installed",
            "pip install 'shoal[bench]'",
        )
    return target


def _check_writable(target: Path) -> None:
    """A file beside it tells, whoever asks and whatever the folder's permissions say."""
    why: object = "it is a folder" if target.is_dir() or target.with_suffix(".svg").is_dir() else ""
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        why = error
    if why:
        raise ShoalError("SH-DISK-02", f"--plot: {target} cannot be written: {why}", "name another file")


def read_rows(files: Iterable[Path]) -> list[Row]:
    """The rows in files of JSON objects, one a line; lines that are none are passed over. Raises SH-DISK-02."""
    rows: list[Row] = []
    for file in files:
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise ShoalError("SH-DISK-02", f"{file} cannot be read: {error}", "check the path") from None
        for line in lines:
            rows += _parsed(line)
    _check_some(rows)
    return rows


def _check_some(rows: Sequence[Row]) -> None:
    if not rows:
        raise ShoalError(
            "SH-DISK-02", "there is no row to draw", "give files of `shoal bench converge --json`"
        )


def _parsed(line: bytes) -> list[Row]:
    """The rows that can be drawn: one that diverged has no gap."""
    return [
        row for row in _read(line) if abs(row.gap) <= MOST and 1 / MOST <= row.bits_per_param_step <= MOST
    ]


def _read(line: bytes) -> list[Row]:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(line, type=_Rows).runs
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [msgspec.json.decode(line, type=Row)]
    return []


def rows_of(fields: Sequence[dict[str, Any]]) -> list[Row]:
    return [row for one in fields for row in _parsed(json.dumps(one).encode())]


def points(rows: Iterable[Row]) -> list[Point]:
    """Rows that differ in their seed alone as one point."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        key = (row.label or row.preset, row.inner, f"{row.bits_per_param_step:.2g}")
        groups.setdefault(key, []).append(row)
    return [
        Point(
            label=label,
            inner=inner,
            bits=sum(row.bits_per_param_step for row in group) / len(group),
            gaps=tuple(100 * row.gap for row in group),
        )
        for (label, inner, _), group in sorted(groups.items())
    ]


def draw(rows: Sequence[Row], target: Path) -> list[Path]:
    """Write the picture as PNG and as SVG; their paths. Raises SH-DISK-02 if there is nothing in it, or no place."""
    _check_some(rows)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "shoal", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(9.0, 5.6), layout="constrained")
        found = points(rows)
        _scales(axes, found)
        marks = _marks(axes)
        for point in found:
            _dot(axes, point)
        figure.canvas.draw()
        _names(figure, axes, found, marks)
        _legend(axes, found)
        paths = [target, target.with_suffix(".svg")]
        try:
            for path in paths:
                figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise ShoalError("SH-DISK-02", f"--plot: {error}", "make room, or name another file") from None
        finally:
            pyplot.close(figure)
    return paths


def _scales(axes: Any, found: Sequence[Point]) -> None:
    gaps = [gap for point in found for gap in point.gaps]
    bits = [*(point.bits for point in found), *PUBLISHED.values()]
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR_PERCENT, linscale=0.6)
    axes.set_xlim(min(bits) / 2, max(bits) * 2.5)
    axes.set_ylim(min(-LINEAR_PERCENT, 1.5 * min(gaps)), max(2 * LINEAR_PERCENT, 2 * max(gaps)))
    ticks = [-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 300]
    axes.set_yticks(ticks, [f"{tick}%" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(min(-LINEAR_PERCENT, 1.5 * min(gaps)), max(2 * LINEAR_PERCENT, 2 * max(gaps)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("bits sent by a worker, per parameter and inner step")
    axes.set_ylabel("validation loss above the synchronous twin's")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _marks(axes: Any) -> list[Any]:
    """The twin's line and the published methods'; that line, and their names: what other names may not cover."""
    line = axes.axhline(0.0, color="#222222", linewidth=1.4)
    twin = axes.annotate(
        "synchronous twin",
        (0.0, 0.0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(6, 4),
        color="#222222",
    )
    names = [line, twin]
    for name, bits in PUBLISHED.items():
        axes.axvline(bits, color="#888888", linewidth=0.9, linestyle=(0, (4, 3)))
        text = axes.annotate(
            name,
            (bits, 0.0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(-4, 5),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=8,
            color="#666666",
        )
        names.append(text)
    return names


def _dot(axes: Any, point: Point) -> None:
    spread = [[point.mean - min(point.gaps)], [max(point.gaps) - point.mean]]
    colour = COLOURS.get(point.inner, "#444444")
    axes.errorbar(
        point.bits, point.mean, yerr=spread, fmt="o", color=colour, markersize=6, capsize=3, zorder=3
    )


def _names(figure: Any, axes: Any, found: Sequence[Point], marks: Sequence[Any]) -> None:
    """Each point's name beside it, where it covers neither a point nor another name."""
    renderer = figure.canvas.get_renderer()
    taken = [text.get_window_extent(renderer) for text in marks]
    taken += [_around(axes.transData.transform((point.bits, point.mean)), 7.0) for point in found]
    for point in sorted(found, key=lambda one: -one.mean):
        for place in PLACES:
            text = axes.annotate(
                point.label,
                (point.bits, point.mean),
                textcoords="offset points",
                xytext=place,
                ha="left" if place[0] > 0 else "right",
                fontsize=9,
                color=COLOURS.get(point.inner, "#444444"),
                parse_math=False,
            )
            box = text.get_window_extent(renderer)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if place == PLACES[-1] or (inside and not any(box.overlaps(other) for other in taken)):
                taken.append(box)
                break
            text.remove()


def _around(centre: Any, radius: float) -> Any:
    from matplotlib.transforms import Bbox

    x, y = centre
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _legend(axes: Any, found: Sequence[Point]) -> None:
    from matplotlib.lines import Line2D

    names = {"adamw": "AdamW inside", "muon": "Muon inside", "sgd": "SGD inside"}
    handles = [
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color=COLOURS.get(inner, "#444444"),
            label=names.get(inner, inner),
        )
        for inner in sorted({point.inner for point in found})
    ]
    handles.append(
        Line2D(
            [], [], color="#888888", linewidth=0.9, linestyle=(0, (4, 3)), label="bits of published methods"
        )
    )
    axes.legend(
        handles=handles, loc="upper center", ncols=len(handles), bbox_to_anchor=(0.5, 1.1), frameon=False
    )
