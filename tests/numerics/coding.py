"""Hashes of what codecs encode and decode: `python tests/numerics/coding.py [threads] [device]` prints them."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import torch

from shoal.codec import CODECS
from shoal.codec.base import ranges

KINDS = ("none", "fp16", "bf16", "int8", "int4", "two-bit", "one-bit", "dct", "chain")
NUMEL = 70_001
FACTOR = 0.3333333432674408


def values() -> torch.Tensor:
    """Numbers of many sizes, from whole numbers alone: a xorshift for the digits, a step of two for each stretch."""
    state, drawn = np.arange(1, NUMEL + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), 0.0
    for shift in (12, 25, 27):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(0x2545F4914F6CDD1D)
        drawn = drawn + (state >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    sizes = np.ldexp(1.0, (np.arange(NUMEL) // 500 % 40) - 24)
    return torch.from_numpy((drawn * sizes).astype(np.float32))


def hashes(device: str = "cpu") -> dict[str, str]:
    """By codec: of the bytes, and of what they decode to."""
    found = {}
    for kind in KINDS:
        codec = CODECS[kind]()
        payload = codec.encode(values().to(device), 7)
        source, out = codec.open(memoryview(payload), NUMEL), torch.empty(NUMEL, device=device)
        assert source is not None
        for start, stop in ranges(source, NUMEL, out.device):
            source.decode(start, stop, FACTOR, out[start:stop])
        found[f"{kind} bytes"] = hashlib.sha256(payload).hexdigest()[:32]
        found[f"{kind} values"] = hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest()[:32]
    return found


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(json.dumps(hashes(*sys.argv[2:]), indent=1))
