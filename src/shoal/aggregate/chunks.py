"""A fragment in chunks, shared out among threads.

In flows how many values there are; out flow ranges. Invariant: a thread takes whole chunks, so that nothing
computed chunk by chunk depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from shoal.codec.base import CHUNK

Spans = Sequence[tuple[int, int]]


def in_chunks(numel: int, device: torch.device, work: Callable[[Spans], None]) -> None:
    """Give every chunk's (start, stop) to one call of `work`, each in a thread of its own."""
    spans = [(start, min(start + CHUNK, numel)) for start in range(0, numel, CHUNK)]
    # As many threads as torch may use here; an accelerator is kept busy by one.
    threads = min(torch.get_num_threads(), len(spans)) if device.type == "cpu" else 1
    if threads <= 1:
        work(spans)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="fold") as pool:
        list(pool.map(work, [spans[first::threads] for first in range(threads)]))
