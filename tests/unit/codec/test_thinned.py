"""A sparse codec that keeps less: its bytes are opened by the one it was made of."""

from __future__ import annotations

import pytest
import torch

from shoal.codec import CODECS
from shoal.codec.base import decode_whole
from shoal.codec.sparse import SparseCodec


@pytest.mark.parametrize("kind", ["top-k", "chunked-top-k"])
def test_a_thinned_update_is_smaller_and_opened_like_any_other(kind: str) -> None:
    codec = CODECS[kind](density=0.1)
    assert isinstance(codec, SparseCodec)
    thin = codec.thinned(4)
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    whole, less = codec.encode(values), thin.encode(values)
    assert len(less) < 0.5 * len(whole)
    source = codec.open(memoryview(less), values.numel())
    assert source is not None
    decoded = decode_whole(source, values.numel())
    kept = int((decoded != 0).sum())
    assert kept == pytest.approx(0.025 * values.numel(), rel=0.1)
    assert thin.open(memoryview(whole), values.numel()) is None
    assert codec.density == 0.1
