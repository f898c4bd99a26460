"""Encoding in one pass, where the device has a kernel for it.

In flow an update, a residual and its decay; out flow bytes and the new residual, or None: encode step by step instead.
Invariant: None is always right, and the only answer for values that must be refused, so that a codec states what
it refuses, and why, once.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import torch

from shoal.codec.kernels import usable

Started: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""On the device: bytes that are to travel, and `decay` times what they leave out of update plus residual, or None."""


@runtime_checkable
class FusedCodec(Protocol):
    """A codec that has a kernel, for all values or some."""

    def start_fused(
        self, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
    ) -> Started | None:
        """Have a device encode `update + residual`, flat float32, at least one value. `decay` None asks for no new
        residual. None where there is no kernel for this."""

    def finish_fused(self, arrived: torch.Tensor, numel: int) -> bytes | None:
        """What arrived in the CPU's memory as this codec's bytes. None if some value was not encodable."""


def try_fused(
    codec: object, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
) -> tuple[bytes, torch.Tensor | None] | None:
    """The bytes of any tensors, and what they leave out, by the codec's kernel; or None."""
    given = [update] if residual is None else [update, residual]
    if not update.numel() or not usable(update.device) or not isinstance(codec, FusedCodec):
        return None
    if any(tensor.dtype != torch.float32 or tensor.device != update.device for tensor in given):
        return None
    if residual is not None and residual.shape != update.shape:
        return None
    flat = [tensor.detach().reshape(-1).contiguous() for tensor in given]
    return encode_fused(codec, flat[0], None if residual is None else flat[1], decay)


def encode_fused(
    codec: FusedCodec, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
) -> tuple[bytes, torch.Tensor | None] | None:
    """The same for flat float32 tensors where kernels run."""
    started = codec.start_fused(update, residual, decay)
    if started is None:
        return None
    travelling, left = started
    payload = codec.finish_fused(_to_cpu(travelling), update.numel())
    return None if payload is None else (payload, left)


def _to_cpu(there: torch.Tensor) -> torch.Tensor:
    """A copy in memory to which a device copies fastest, and which torch keeps for the next time."""
    if there.device.type == "cpu":
        return there
    return torch.empty_like(there, device="cpu", pin_memory=True).copy_(there)
