"""`shoal bench converge`: presets against their synchronous twins.

In flow names of presets and a question; out flow rows, ranked by their gap. Invariant: a row's twin has the row's
model, data, inner optimiser, steps, workers and seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from shoal.apps.bench.converge.engines import find_engine
from shoal.apps.bench.converge.frontier import Row, rows_of
from shoal.apps.bench.converge.outcome import Comparison
from shoal.apps.bench.converge.setup import Question, Say, make_setup
from shoal.apps.bench.converge.twin import Twins
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.strategy.presets import PRESETS

ALL = "all"


def compare(presets: Sequence[str], question: Question, engine: str, say: Say) -> list[Comparison]:
    """Train every preset and its twin. Raises SH-RECIPE-02 if a name is wrong, and -03 if the engine has nothing for a
    preset, before anything is trained."""
    names = chosen(presets)
    setups = [make_setup(name, question) for name in names]
    engines = [find_engine(engine, setup) for setup in setups]
    twins, rows = Twins(), []
    # A small model gains nothing from more, nor does the fold of sparse updates, and last digits would depend on them.
    torch.set_num_threads(1)
    for setup, train in tracked(list(zip(setups, engines, strict=True)), "presets"):
        began = time.monotonic()
        sync_loss = twins.loss(setup, say)
        outcome = train(setup, say)
        row = Comparison(
            preset=setup.preset,
            inner=setup.inner.kind,
            workers=setup.workers,
            seed=setup.seed,
            outcome=outcome,
            sync_loss=sync_loss,
            seconds=time.monotonic() - began,
        )
        say(line(row))
        rows.append(row)
    return rows


def chosen(presets: Sequence[str]) -> list[str]:
    """The presets that are meant, each once, in order. Raises SH-RECIPE-02."""
    names = list(dict.fromkeys(name for given in presets for name in (PRESETS if given == ALL else [given])))
    unknown = [name for name in names if name not in PRESETS]
    if unknown or not names:
        raise ShoalError(
            "SH-RECIPE-02",
            f"--preset: found {', '.join(map(repr, unknown)) or 'none'}",
            f"allowed: {', '.join(sorted(PRESETS))}, {ALL}",
        )
    return names


def as_json(rows: Sequence[Comparison]) -> dict[str, Any]:
    """One row as it is; several under `runs`, the best first."""
    if len(rows) == 1:
        return rows[0].fields()
    return {"runs": [row.fields() for row in ranked(rows)]}


def drawable(rows: Sequence[Comparison]) -> list[Row]:
    return rows_of([row.fields() for row in rows])


def ranked(rows: Sequence[Comparison]) -> list[Comparison]:
    """The best first; last what diverged."""
    return sorted(rows, key=lambda row: (math.isnan(row.gap), row.gap))


def table(rows: Sequence[Comparison]) -> list[str]:
    """For people, the best first."""
    head = f"{'preset':18} {'inner':6} {'loss':>7} {'sync':>7} {'gap':>8} {'bit sent':>9} {'received':>9} "
    return [f"{head}{'wire MB':>9} {'rounds':>6} {'s':>6}", *(line(row) for row in ranked(rows))]


def line(row: Comparison) -> str:
    done = row.outcome
    return (
        f"{row.preset:18} {row.inner:6} {done.loss:7.4f} {row.sync_loss:7.4f} {row.gap:8.2%} "
        f"{row.bits_per_param_step:9.4g} {row.received_bits_per_param_step:9.4g} "
        f"{done.wire_bytes / 1e6:9.1f} {done.rounds:6} {row.seconds:6.0f}"
    )
