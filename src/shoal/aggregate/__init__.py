"""Many updates -> one -> new state. The registries that a recipe's `aggregate.kind` and `outer.kind` name."""

from __future__ import annotations

from collections.abc import Callable

from shoal.aggregate.adam import OuterAdam
from shoal.aggregate.base import Aggregator, Combine, Gathering, OuterOptimizer, Sealed
from shoal.aggregate.clipped_mean import ClippedMean
from shoal.aggregate.delayed import DelayedNesterov
from shoal.aggregate.direction_mean import DirectionMean
from shoal.aggregate.heloco import HeLoCo
from shoal.aggregate.mean import WeightedMean
from shoal.aggregate.onebit import OneBitAdam
from shoal.aggregate.outer import OuterNesterov, OuterSGD
from shoal.aggregate.sender_mean import SenderMean
from shoal.aggregate.sign import OuterSign

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": WeightedMean,
    "sender-mean": SenderMean,
    "clipped-mean": ClippedMean,
    "direction-mean": DirectionMean,
    "heloco": HeLoCo,
}
OUTER_OPTIMIZERS: dict[str, Callable[..., OuterOptimizer]] = {
    "sgd": OuterSGD,
    "nesterov": OuterNesterov,
    "delayed-nesterov": DelayedNesterov,
    "adam": OuterAdam,
    "onebit-adam": OneBitAdam,
    "sign": OuterSign,
}

__all__ = [
    "AGGREGATORS",
    "OUTER_OPTIMIZERS",
    "Aggregator",
    "Combine",
    "Gathering",
    "OuterOptimizer",
    "Sealed",
]
