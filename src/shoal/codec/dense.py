"""The codecs that send every value by itself or with its neighbours: alone, or what a chain's first stage keeps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.codec.base import SizedCodec
from shoal.codec.floats import FloatCodec
from shoal.codec.int8 import Int8Codec
from shoal.codec.levels import int4, one_bit, two_bit

DENSE: dict[str, Callable[..., SizedCodec]] = {
    "none": lambda: FloatCodec(torch.float32),
    "fp16": lambda: FloatCodec(torch.float16),
    "bf16": lambda: FloatCodec(torch.bfloat16),
    "int8": Int8Codec,
    "int4": int4,
    "two-bit": two_bit,
    "one-bit": one_bit,
}
