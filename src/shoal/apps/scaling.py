"""How throughput grows with a fleet: the sizes that are compared, and what is said of each.

In flows what was asked for, `1,10,50`; out flow sizes, and rows. Invariant: a size that cannot be is refused with what
can; every size is measured against what its own devices could train, so that faster hosts in a larger fleet flatter
nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    nodes: int
    useful_samples_per_s: float
    possible_samples_per_s: float
    throughput_share: float
    """Useful to possible."""
    linear: float
    """This share against that of the first size: 1 is linear."""


def sizes_in(text: str, most: int) -> tuple[int, ...]:
    """Raises `typer.BadParameter` for `--nodes`."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise typer.BadParameter("whole numbers with commas, e.g. 1,10,50", param_hint="--nodes") from None
    if not all(0 < size <= most for size in sizes):
        raise typer.BadParameter(f"1 to {most} nodes", param_hint="--nodes")
    return sizes
