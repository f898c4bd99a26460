"""`shoal bench robust`: the fold's time under each rule, against the plain mean's and `byzfl`'s.

In flow sizes; out flow seconds and ratios. Invariant: every rule folds the same updates into the same state, and the
mean is timed again beside each of them, so that a ratio is of two times from one moment. A rule's share of a round is
of that fold and a node's local steps, trained here afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.aggregate.base import Aggregator, Guarded
from shoal.apps.bench.attacks_setting import DEFAULT_RULE
from shoal.apps.bench.outside_rules import byzfl_rules
from shoal.apps.bench.robust_round import LocalSteps, local_steps_of
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.base.layout import make_layout
from shoal.codec import CODECS
from shoal.codec.base import decode_whole
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import initial_state
from shoal.replica.update import encode_update, open_update

ROBUST = (
    "clipped-mean",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "bulyan",
    "geometric-median",
    "centred-clipping",
    DEFAULT_RULE,
)
REPEATS, LARGE = 9, 50_000_000
"""How often each is timed; a third of it from so many parameters on."""
SEED = "0" * 64
_MATRIX_SHARE = 0.4
"""`byzfl` is given all updates as one dense matrix; it is left out where that, and its copies, would not fit."""

Say = Callable[[str], None]


def measure(
    params: int,
    updates: int,
    threads: int,
    codec: str,
    chosen: Sequence[str],
    say: Say,
    *,
    training: bool = True,
) -> dict[str, Any]:
    """Each rule's best of a few, the mean in turn with it. Raises SH-RECIPE-02 for an unknown rule or codec."""
    chosen = chosen or ROBUST
    _check(chosen, codec)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    made, outer = CODECS[codec](), OUTER_OPTIMIZERS["nesterov"]()
    say(f"making a state of {params:,} parameters and {updates} {codec} updates")
    random = torch.Generator().manual_seed(0)
    common, values = torch.randn(params, generator=random) * 1e-3, torch.empty(params)
    blobs = []
    for _ in tracked(range(updates), "updates"):
        values.normal_(0, 1e-3, generator=random).add_(common)
        blobs.append(SealedBlob(encode_update([(0, made.encode(values))]), 100))
    layout = make_layout([("weights", (params,))])
    state = initial_state(layout, values.normal_(generator=random), outer.slots)
    del common, values

    def fold_s(rule: Aggregator) -> float:
        rules = FoldRules(made, rule, outer)
        return _timed(lambda: fold(state, (0,), blobs, rules, seed=SEED))

    theirs, repeats = _outside(params, updates), REPEATS if params < LARGE else REPEATS // 3
    rows = {}
    for name in tracked(chosen, "rules"):
        rule = AGGREGATORS[name]()
        if isinstance(rule, Guarded) and (why := rule.refusal(updates)):
            say(f"{name} is left out: {why}")
            continue
        times = [(fold_s(AGGREGATORS["mean"]()), fold_s(rule)) for _ in range(repeats)]
        own_s, mean_s = min(own for _, own in times), min(mean for mean, _ in times)
        rows[name] = {
            "fold_s": round(own_s, 4),
            "mean_fold_s": round(mean_s, 4),
            "ratio": round(own_s / mean_s, 3),
            "byzfl_s": _byzfl_s(theirs.get(name), blobs, params, made),
        }
        say(f"{name:18} {own_s:8.3f} s, {own_s / mean_s:5.2f} times the mean's fold")
    # Last: what training leaves of the heap slows folds of that size.
    local = _local_steps(params, say) if training else None
    for row in rows.values():
        row["share_of_round"] = _share(row["fold_s"], local)
    return {
        "params": params,
        "updates": updates,
        "codec": codec,
        "threads": torch.get_num_threads(),
        "default": DEFAULT_RULE,
        "default_ratio": rows.get(DEFAULT_RULE, {}).get("ratio"),
        "default_share_of_round": rows.get(DEFAULT_RULE, {}).get("share_of_round"),
        "local_steps": asdict(local) if local else None,
        "rules": rows,
    }


def _share(fold_s: float | None, local: LocalSteps | None) -> float | None:
    return None if local is None or fold_s is None else round(fold_s / (fold_s + local.seconds), 4)


def _local_steps(params: int, say: Say) -> LocalSteps:
    say(f"training a GPT of about {params:,} parameters for the length of a round")
    local = local_steps_of(params)
    say(f"a round has {local.steps} steps of {local.step_s:.2f} s with {local.params:,} parameters")
    return local


def _check(chosen: Sequence[str], codec: str) -> None:
    for option, names, allowed in (("--rule", chosen, AGGREGATORS), ("--codec", [codec], CODECS)):
        for name in names:
            if name not in allowed:
                raise ShoalError(
                    "SH-RECIPE-02", f"{option}: found {name!r}", f"allowed: {', '.join(sorted(allowed))}"
                )


def _outside(params: int, updates: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fits = 4 * 4 * params * updates < _MATRIX_SHARE * memory
    return byzfl_rules(int(0.3 * updates)) if fits else {}


def _byzfl_s(
    rule: Callable[[torch.Tensor], torch.Tensor] | None,
    blobs: Sequence[SealedBlob],
    params: int,
    codec: Any,
) -> float | None:
    """Its time from the same bytes: decoded into a matrix, then aggregated. It takes no outer step."""
    if rule is None:
        return None
    layout = make_layout([("weights", (params,))])

    def whole() -> None:
        rows = torch.empty(len(blobs), params)
        for row, sealed in zip(rows, blobs, strict=True):
            opened = open_update(sealed.blob, layout, (0,), codec)
            assert opened is not None
            row.copy_(decode_whole(opened[0], params))
        rule(rows)

    return round(_timed(whole), 4)


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    head = f"{'rule':18} {'fold s':>9} {'x mean':>7} {'byzfl s':>9} {'of round':>9}"
    lines = [f"{result['params']:,} parameters, {result['updates']} {result['codec']} updates", head]
    for name, row in result["rules"].items():
        theirs = f"{row['byzfl_s']:9.3f}" if row["byzfl_s"] is not None else f"{'none':>9}"
        share = f"{row['share_of_round']:9.2%}" if row["share_of_round"] is not None else f"{'-':>9}"
        lines.append(f"{name:18} {row['fold_s']:9.3f} {row['ratio']:7.2f} {theirs} {share}")
    return lines
