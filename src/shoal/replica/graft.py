"""A parent run's news on their way into a region: by how much every parameter moves.

In flow a vector, or a region's state and such a blob; out flow bytes, or the next state. Invariant: like the fold, it
is pure, total and the same bits everywhere; a blob that is no graft moves nothing. Only parameters move: the region's
own outer momentum is its members', and stays.
"""

from __future__ import annotations

import torch

from shoal.aggregate.base import LARGEST
from shoal.base.layout import Layout
from shoal.codec import CODECS
from shoal.codec.base import CHUNK
from shoal.replica.state import State
from shoal.replica.update import encode_update, open_update

_CODEC = CODECS["bf16"]()
"""Half the bytes; what it rounds away, the hub sees in its region's state and sends up with the next update."""


def encode_graft(delta: torch.Tensor, layout: Layout) -> bytes:
    """A blob that moves a state by this. Raises SH-CODEC-01 if it is not finite."""
    parts = [(index, delta[part.start : part.stop]) for index, part in enumerate(layout.fragments)]
    return encode_update([(index, _CODEC.encode(values)) for index, values in parts])


def apply_graft(state: State, blob: bytes) -> State:
    layout = state.layout
    opened = open_update(blob, layout, tuple(range(len(layout.fragments))), _CODEC)
    if opened is None:
        return state
    params = state.params.clone()
    for index, source in opened.items():
        here = params[layout.fragments[index].start : layout.fragments[index].stop]
        for start in range(0, here.numel(), CHUNK):
            stop = min(start + CHUNK, here.numel())
            move = torch.empty_like(here[start:stop])
            source.decode(start, stop, 1.0, move)
            here[start:stop].add_(move.clamp_(-LARGEST, LARGEST))
    return State(layout, params, state.slots, state.steps)
