"""A node's host in a lab: training takes as long as it would take the device that the lab says this is.

In flow jobs with what they take a device of speed 1; out flow their results, not before that device would have
them. Invariant: outside a lab, and for jobs without a duration, nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from shoal.worlds.real.host import RealHost

if TYPE_CHECKING:
    from shoal.lab.pace import Pacer

T = TypeVar("T")


class PacedHost(RealHost):
    """Use it as a `RealHost`; `pacer` is None outside a lab."""

    pacer: Pacer | None = None

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        began = self.clock.now()
        done = await super().work(job)
        if self.pacer is not None and seconds:
            await self.clock.sleep(self.pacer.left(began, self.clock.now(), seconds))
        return done

    async def __aenter__(self) -> PacedHost:
        return self
