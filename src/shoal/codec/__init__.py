"""Tensors <-> bytes. `CODECS` is the registry: the recipe's `codec.kind` names an entry here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.codec.base import CHUNK, Codec, Source
from shoal.codec.chain import ChainCodec, dct
from shoal.codec.dense import DENSE
from shoal.codec.powersgd import PowerSgdCodec
from shoal.codec.random_k import RandomKCodec
from shoal.codec.sparse import SparseCodec

CODECS: dict[str, Callable[..., Codec]] = {
    **DENSE,
    "top-k": SparseCodec,
    "chunked-top-k": partial(SparseCodec, density=1 / 32, chunk=4096, bits=2),
    "ternary": partial(SparseCodec, density=0.1, chunk=4096, bits=1, share="fragment"),
    "random-k": RandomKCodec,
    "powersgd": PowerSgdCodec,
    "dct": dct,
    "chain": ChainCodec,
}

UNEQUAL_CODECS = frozenset({"powersgd"})
"""Those that encode the same values to other bytes on another machine."""

__all__ = ["CHUNK", "CODECS", "UNEQUAL_CODECS", "Codec", "Source"]
