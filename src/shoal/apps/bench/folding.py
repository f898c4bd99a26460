"""The fold's speed, against a copy of the same state in the same run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.apps.progress import tracked
from shoal.base.layout import make_layout
from shoal.codec import CODECS
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state
from shoal.replica.update import encode_update

REPEATS = 3


def measure(params: int, updates: int, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Best of a few, fold and copy in turn. Bytes are those read and written at the least: every update once,
    parameters and momentum read and written once."""
    torch.set_num_threads(threads or os.cpu_count() or 1)
    say(f"making a state of {params:,} parameters and {updates} int8 updates")
    codec = CODECS["int8"]()
    rules = FoldRules(codec, AGGREGATORS["mean"](), OUTER_OPTIMIZERS["nesterov"]())
    random = torch.Generator().manual_seed(0)
    values = torch.empty(params)
    blobs = []
    for number in tracked(range(updates), "updates"):
        payload = codec.encode(values.normal_(0, 1e-3, generator=random))
        blobs.append(SealedBlob(encode_update([(0, payload)]), 100 + number))
    state = initial_state(
        make_layout([("weights", (params,))]), values.normal_(generator=random), rules.outer.slots
    )
    fold_s, copy_s = [], []
    for number in tracked(range(REPEATS), "runs"):
        copy_s.append(_timed(lambda: _copy(state)))
        fold_s.append(_timed(lambda: fold(state, (0,), blobs, rules)))
        say(f"run {number + 1} of {REPEATS}: fold {fold_s[-1]:.2f} s, copy {copy_s[-1]:.2f} s")
    update_bytes = sum(len(update.blob) for update in blobs)
    state_bytes = 4 * params * (1 + len(state.slots))
    fold_gb_s = (update_bytes + 2 * state_bytes) / min(fold_s) / 1e9
    copy_gb_s = 2 * state_bytes / min(copy_s) / 1e9
    return {
        "params": params,
        "updates": updates,
        "threads": torch.get_num_threads(),
        "fold_s": round(min(fold_s), 4),
        "fold_gb_s": round(fold_gb_s, 3),
        "copy_gb_s": round(copy_gb_s, 3),
        "ratio": round(fold_gb_s / copy_gb_s, 3),
        "values_per_s": round(params * updates / min(fold_s)),
    }


def _copy(state: State) -> list[torch.Tensor]:
    return [state.params.clone(), *(slot.clone() for slot in state.slots.values())]


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began
