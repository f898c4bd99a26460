"""How far a re-run is from what was claimed, and whether that is within what honest hardware shows.

In flow two updates as blobs; out flows a distance. Invariant: decoded values are compared, never bytes: one bit of
rounding may move a value to the next level of a codec, and must not make a liar of anybody.
"""

from __future__ import annotations

import math

import torch

from shoal.audit.docket import replayable
from shoal.base.layout import Layout
from shoal.codec.base import CHUNK, Codec, Source
from shoal.replica.update import open_cut, open_update
from shoal.runlog.view import Update

FARTHEST = 2.0
"""Two updates of one length that point opposite ways; and whatever is no update at all."""


def distance(update: Update, claimed: bytes, again: bytes | None, layout: Layout, codec: Codec) -> float:
    """Between two blobs for one claim, as a share of the longer update; `FARTHEST` if either is no update."""
    if again is None or replayable(update):
        return FARTHEST
    one, two = (opened(update, blob, layout, codec) for blob in (claimed, again))
    if one is None or two is None or len(one) != len(two):
        return FARTHEST
    apart = left = right = 0.0
    for (numel, source), (_, other) in zip(one, two, strict=True):
        for start in range(0, numel, CHUNK):
            stop = min(start + CHUNK, numel)
            here, there = torch.empty(2, stop - start)
            source.decode(start, stop, 1.0, here)
            other.decode(start, stop, 1.0, there)
            left += _square(here)
            right += _square(there)
            apart += _square(here.sub_(there))
    longer = math.sqrt(max(left, right))
    return min(FARTHEST, math.sqrt(apart) / longer) if longer else 0.0


def opened(update: Update, blob: bytes, layout: Layout, codec: Codec) -> list[tuple[int, Source]] | None:
    """The parts of an update, with their lengths; None if it is none."""
    fragments = tuple(index for index, _ in update.claim.base)
    shards = update.work.shards if update.work is not None else 0
    if shards:
        cut = open_cut(blob, layout, fragments, codec, shards)
        return [(span[2] - span[1], source) for span, source in cut] or None
    whole = open_update(blob, layout, fragments, codec)
    return None if whole is None else [(layout.fragments[i].numel, s) for i, s in whole.items()]


def _square(values: torch.Tensor) -> float:
    doubles = values.double()
    return float(torch.dot(doubles, doubles))
