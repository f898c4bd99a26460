"""Curves side by side, as a picture.

In flow curves; out flow a PNG and an SVG: loss against time, bytes and cost. Invariant: every panel has the same curves
in the same colours, and a curve that has no point is in the legend all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.apps.compare_curves import Curve, Point
from shoal.base.errors import ShoalError

PANELS: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("seconds", lambda point: point.seconds),
    ("megabytes sent by all", lambda point: point.sent_bytes / 1e6),
    ("cost", lambda point: point.cost),
)


def plot(curves: Sequence[Curve], title: str, path: Path) -> tuple[Path, Path]:
    """Write `path` with .png and .svg; both. Raises SH-RUN-01 where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ShoalError(
            "SH-RUN-01", "plots need matplotlib", "pip install 'shoal[bench]', or give --no-plot"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(13, 4), sharey=True)
    for panel, (label, read) in zip(panels, PANELS, strict=True):
        for curve in curves:
            across = [read(point) for point in curve.points]
            panel.plot(across, [point.loss for point in curve.points], marker=".", label=curve.name)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("validation loss")
    panels[-1].legend()
    figure.suptitle(title)
    figure.tight_layout()
    made = path.with_suffix(".png"), path.with_suffix(".svg")
    for file in made:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return made
