"""An update as whole numbers whose sum cannot overflow.

In flow floats; out flow 32-bit numbers, and back from their sum. Invariant: a number is cut to the limit before it is
rounded, and so many members' numbers at the limit still fit 32 bits with a sign; so the sum modulo 2^32 is the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.errors import ShoalError

Words = npt.NDArray[np.uint32]
BITS = 32
MOST = 2 ** (BITS - 1) - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Numbers up to `limit` either way (rounded up to a power of two), for sums of at most `members`. Raises ValueError
    if that leaves no digits."""

    limit: float
    members: int

    def __post_init__(self) -> None:
        finite = math.isfinite(self.limit) and self.limit > 0
        if not finite or not 1 <= self.members <= MOST or abs(self.shift) > 100:
            raise ValueError(f"no fixed point for {self.members} numbers up to {self.limit}")

    @property
    def most(self) -> int:
        """The largest whole number that is sent: a power of two, which a float holds exactly."""
        digits: int = (MOST // self.members).bit_length() - 1
        return 1 << digits

    @property
    def shift(self) -> int:
        """One unit is 2 to the power of minus this."""
        fraction, power = math.frexp(self.limit)
        return self.most.bit_length() - 1 - (power - 1 if fraction == 0.5 else power)

    @property
    def unit(self) -> float:
        return math.ldexp(1.0, -self.shift)

    def encode(self, values: torch.Tensor) -> Words:
        """Each value in units, to the nearest whole number. Raises SH-CODEC-01 for what is not finite."""
        flat = values.detach().to("cpu", torch.float32).flatten()
        if not bool(torch.isfinite(flat).all()):
            raise ShoalError(
                "SH-CODEC-01", "the update has a value that is not a finite number", "nothing was published"
            )
        whole = (flat * math.ldexp(1.0, self.shift)).clamp_(-self.most, self.most).round_()
        return whole.to(torch.int32).numpy().view(np.uint32)

    def decode_mean(self, total: Words, count: int) -> torch.Tensor:
        """The mean of `count` updates from their sum. Honest ones' is within the limit: what a liar added is cut."""
        signed = torch.from_numpy(total.view(np.int32).astype(np.float64))
        most = self.most * self.unit
        return (signed * self.unit / count).clamp_(-most, most).to(torch.float32)
