"""Tensors <-> bytes. `CODECS` is the registry: the recipe's `codec.kind` names an entry here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.codec.base import CHUNK, Codec, Source
from shoal.codec.floats import FloatCodec
from shoal.codec.int8 import Int8Codec

CODECS: dict[str, Callable[..., Codec]] = {
    "none": lambda: FloatCodec(torch.float32),
    "fp16": lambda: FloatCodec(torch.float16),
    "int8": Int8Codec,
}

__all__ = ["CHUNK", "CODECS", "Codec", "Source"]
