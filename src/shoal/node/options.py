"""What a volunteer decides about its node, and what makes its trainer. Nothing of this is in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shoal.base.ids import BlobId
from shoal.runlog.entries import Genesis
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer

TrainerFactory = Callable[[Recipe, Genesis, Callable[[BlobId], bytes]], Trainer]


async def always(recipe: Recipe, genesis: Genesis) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How this volunteer wants its node to behave."""

    step_seconds: float = 0.0
    """What simulation charges for one step at device speed 1."""
    job_s: float = 0.1
    """Short steps run several to a job, about this long, so that handing over costs nothing."""
    give_up_s: float = 30.0
    """How long the first connection may take before the node says that it cannot be had."""
    agree: Callable[[Recipe, Genesis], Awaitable[bool]] = always
    """Asked once what will run is known, before anything is fetched for it; False to leave instead."""
    may_train: Callable[[], str] = lambda: ""
    """Asked between jobs: "" to train, or why not now (someone is using the machine, say)."""
    traffic: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Bytes sent and received so far, for the heartbeat."""
    memory: Callable[[], int] = lambda: 0
    """Bytes of memory that are free, for the heartbeat."""
    resent: Callable[[], float] = lambda: 0.0
    """The share of what was sent lately that had to be sent again, for the heartbeat."""
    device: str = "cpu"
