"""Whether updates come of the samples that they were assigned: doubts, from a few samples of each.

In flow the updates of a seal and of some before it, and a way to look: what a few samples of an assignment add to a
step. Out flow doubts, in natural logarithms of odds. Invariant: a doubt convicts nobody; where the looks tell honest
updates from one another by nothing, nobody is doubted.

An honest update goes the way that its own samples pull, more than the others' updates do. Most of what updates differ
by lies in a few directions that say nothing about single samples; they are known from the seals before, and taken out
first (whitening). Everybody is looked at shortly, and those who seem least like their samples again, more closely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from shoal.audit.selection import number

Look = Callable[[int, int], torch.Tensor]
"""(which update of the seal, which of the looks at it) -> what some samples of its assignment add to a step."""

COLUMNS = 1 << 13
"""Of longer updates so many values are compared: more would cost much, and tell little."""
_RIDGE = 0.03
"""How much of a known direction is left; without any, what chance put into them would count for certain."""
_LEAST = 4
"""With fewer updates there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A look that is taken at the most doubtful of a seal's updates."""

    count: int
    """At how many."""
    worth: float
    """How many samples' training it costs; what it tells, in deviations, grows with the root."""


class Looking:
    """How the updates of one seal are looked at. Looks are taken once and kept."""

    def __init__(self, look: Look, earlier: Iterable[torch.Tensor], rungs: Sequence[Rung], seed: str) -> None:
        """The first rung is of all updates. `earlier` are the updates of seals before, by seal; the seed draws what is
        compared of long ones."""
        self.rungs = rungs
        self._look, self._seed = look, seed
        self._taken: dict[tuple[int, int], torch.Tensor] = {}
        self._columns: torch.Tensor | None = None
        known = [_directions(self.cut(one)) for one in earlier]
        self._known = torch.cat(known) if known else None
        self._factor = None if self._known is None else torch.linalg.cholesky(_ridged(self._known))

    def cut(self, rows: torch.Tensor) -> torch.Tensor:
        """The values of these rows that are compared."""
        if self._columns is None:
            self._columns = _columns(rows.shape[-1], self._seed)
        return rows[..., self._columns].float()

    def pulls(self, places: Sequence[int], rung: int) -> torch.Tensor:
        for place in places:
            if (place, rung) not in self._taken:
                self._taken[place, rung] = self.cut(self._look(place, rung))
        return _unit(torch.stack([self._taken[place, rung] for place in places]))

    def whitened(self, rows: torch.Tensor) -> torch.Tensor:
        """What sets these updates apart, less the directions that set updates apart anyway."""
        new = _directions(self.cut(rows))
        left, products = new, _ridged(new)
        if self._known is not None and self._factor is not None:
            # By blocks: what the seals before say is worked out once, whatever this seal's updates are.
            across = (self._known @ new.T).double()
            shares = torch.cholesky_solve(across, self._factor)
            left, products = new - shares.T.float() @ self._known, products - across.T @ shares
        spread: torch.Tensor = _RIDGE * torch.linalg.solve(products, left.double())[: len(rows)].float()
        return spread


def doubts(rows: torch.Tensor, looking: Looking) -> torch.Tensor:
    """By how much more each update looks like others' samples' than like its own."""
    found = torch.zeros(len(rows), dtype=torch.float64)
    if len(rows) < _LEAST:
        return found
    spread, everybody = looking.whitened(rows), range(len(rows))
    pulls = looking.pulls(everybody, 0)
    common = pulls.mean(dim=0)
    fits = _fits(_unit(pulls - common), spread, everybody)
    usual = max(0.0, float(fits.median()))
    found += _doubt(fits, usual)
    for number_, rung in enumerate(looking.rungs[1:] if usual else (), 1):
        chosen = [int(place) for place in found.argsort(descending=True, stable=True)[: rung.count]]
        fits = _fits(_unit(looking.pulls(chosen, number_) - common), spread, chosen)
        found[chosen] += _doubt(fits, usual * math.sqrt(rung.worth / looking.rungs[0].worth))
    return found


def _doubt(fits: torch.Tensor, usual: float) -> torch.Tensor:
    """How much likelier a fit is around 0 than around the usual one."""
    return usual * usual / 2 - usual * fits


def _fits(pulls: torch.Tensor, spread: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """How much better the pull of a place fits its own update than the others', in deviations of theirs."""
    products = (pulls @ spread.T).double()
    own = torch.zeros_like(products, dtype=torch.bool)
    own[range(len(places)), list(places)] = True
    others = products.masked_fill(own, 0.0)
    middle = others.sum(dim=1, keepdim=True) / (products.shape[1] - 1)
    apart = (products - middle).masked_fill(own, 0.0)
    deviation = math.sqrt(float(apart.square().sum()) / (len(places) * (products.shape[1] - 2)))
    fits: torch.Tensor = (products - middle)[own] / max(deviation, 1e-300)
    return fits


def _directions(rows: torch.Tensor) -> torch.Tensor:
    """Each one's way from the mean, and the mean's own, all of one length; what is no number tells nothing."""
    mean = rows.mean(dim=0, keepdim=True)
    return _unit(torch.cat([rows - mean, mean])).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _ridged(directions: torch.Tensor) -> torch.Tensor:
    """Their products with one another, and the ridge."""
    eye = torch.eye(len(directions), dtype=torch.float64)
    return (directions @ directions.T).double() + _RIDGE * eye


def _unit(rows: torch.Tensor) -> torch.Tensor:
    units: torch.Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return units


def _columns(width: int, seed: str) -> torch.Tensor:
    """Which values are compared: all, or as many as that, drawn."""
    if width <= COLUMNS:
        return torch.arange(width)
    numbers = torch.Generator().manual_seed(number(seed, "columns") >> 1)
    return torch.randint(width, (COLUMNS,), generator=numbers)
