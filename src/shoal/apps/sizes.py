"""Sizes of fleets, as they are written on a command line: `1,10,50`.

In flows a text; out flow whole numbers. Invariant: what cannot be a size is refused with what can.
"""

from __future__ import annotations

import typer


def sizes_in(text: str, most: int) -> tuple[int, ...]:
    """Raises `typer.BadParameter` for `--nodes`."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter("whole numbers with commas, e.g. 1,10,50", param_hint="--nodes") from None
    if not all(0 < size <= most for size in sizes):
        raise typer.BadParameter(f"1 to {most} nodes", param_hint="--nodes")
    return sizes
