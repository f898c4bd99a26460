"""The device to train on.

In flows a name as people write it; out flows a torch device that has been tried. Invariant: what is returned
has computed something, so a missing driver is found here and not in the middle of a step.
"""

from __future__ import annotations

import os

import torch

from shoal.base.errors import ShoalError


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is the first of cuda, mps and cpu that works. Raises SH-DEVICE-01."""
    chosen = _best() if name == "auto" else name
    try:
        device = torch.device(chosen)
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ShoalError(
            "SH-DEVICE-01", f"device {chosen!r} is not usable: {reason}", "use auto, cpu, cuda, cuda:1 or mps"
        ) from error
    return device


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def make_repeatable(device: torch.device) -> None:
    """Have CUDA kernels give the same bits for the same input. Process-wide; elsewhere they do anyway."""
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the only way to tell cuBLAS
    torch.use_deterministic_algorithms(True)  # attention ignores the milder mode that only warns
    # Otherwise every empty() is filled, and no kernel of ours reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
