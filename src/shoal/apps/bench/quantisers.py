"""Other libraries' quantisers, as a yardstick for ours, where they are installed.

In flows nothing; out flow quantisers that take and give float32 tensors. Invariant: none of these libraries is
needed, and nothing else imports them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    bits: float
    """A value, its share of the scales included."""
    encode: Callable[[torch.Tensor], Any]
    decode: Callable[[Any], torch.Tensor]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # absent, or built for another torch
        return None


def _bitsandbytes_int8() -> Quantiser | None:
    found = _module("bitsandbytes.functional")
    if found is None:
        return None
    return Quantiser(
        bits=8 + 32 / BLOCK,
        encode=lambda values: found.quantize_blockwise(values, blocksize=BLOCK),
        decode=lambda encoded: found.dequantize_blockwise(*encoded),
    )


def _bitsandbytes_nf4() -> Quantiser | None:
    found = _module("bitsandbytes.functional")
    if found is None:
        return None
    return Quantiser(
        bits=4 + 32 / BLOCK,
        encode=lambda values: found.quantize_4bit(values, blocksize=BLOCK, quant_type="nf4"),
        decode=lambda encoded: found.dequantize_4bit(*encoded),
    )


def _torchao_int8() -> Quantiser | None:
    found = _module("torchao.quantization.quant_primitives")
    if found is None:
        return None
    block = (1, BLOCK)

    def encode(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = values[: values.numel() // BLOCK * BLOCK].view(-1, BLOCK)
        scale, zero = found.choose_qparams_affine(rows, found.MappingType.SYMMETRIC, block, torch.int8)
        return found.quantize_affine(rows, block, scale, zero, torch.int8), scale, zero

    def decode(encoded: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        codes, scale, zero = encoded
        values: torch.Tensor = found.dequantize_affine(codes, block, scale, zero, torch.int8)
        return values

    return Quantiser(bits=8 + 32 / BLOCK, encode=encode, decode=decode)


OTHERS: dict[str, Callable[[], Quantiser | None]] = {
    "bitsandbytes int8": _bitsandbytes_int8,
    "bitsandbytes nf4": _bitsandbytes_nf4,
    "torchao int8": _torchao_int8,
}
