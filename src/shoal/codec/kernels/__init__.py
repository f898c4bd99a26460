"""Kernels for devices that Triton compiles for: the codecs' encoding and decoding, each in one pass over memory.

In flow tensors on a device; out flow packed bytes in the CPU's memory, and tensors where they were. Invariant: the bits
are those of the torch code beside, which stays the definition. Nothing here is imported, and nothing of Triton,
before a device is known to need it; a device on which a trial does not give the right bytes never gets to.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch


def usable(device: torch.device) -> bool:
    """Whether kernels run on this device. The first time, it is tried."""
    return device.type == "cuda" and _works(device)


@cache
def _works(device: torch.device) -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from shoal.codec.kernels.trial import passes

        return passes(device)
    except Exception:  # no compiler, a driver too old, a device too old: Triton says so in many ways
        return False
