"""A fragment in ranges of whole chunks, shared out among threads.

In flows how many values there are; out flow ranges. Invariant: a range is whole chunks, so that nothing computed chunk
by chunk depends on how many threads there are, nor on how long the ranges are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from shoal.codec.base import CHUNK, range_on

Spans = Sequence[tuple[int, int]]


def in_chunks(numel: int, device: torch.device, work: Callable[[Spans], None], longest: int = CHUNK) -> None:
    """Give every range's (start, stop) to one call of `work`, each in a thread of its own. A range is one chunk; in a
    single thread up to `longest`. (Where there are several, torch would start more of its own for longer ranges.)"""
    # As many threads as torch may use here; an accelerator is kept busy by one.
    threads = min(torch.get_num_threads(), -(-numel // CHUNK)) if device.type == "cpu" else 1
    step = range_on(device, longest) if threads <= 1 else CHUNK
    spans = [(start, min(start + step, numel)) for start in range(0, numel, step)]
    if not spans:
        return
    if threads <= 1:
        work(spans)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="fold") as pool:
        list(pool.map(work, [spans[first::threads] for first in range(threads)]))
