"""Many updates -> one -> new state. The registries that a recipe's `aggregate.rule` and `outer.kind` name."""

from __future__ import annotations

from collections.abc import Callable

from shoal.aggregate.base import Aggregator, Combine, Gathering, OuterOptimizer, Sealed
from shoal.aggregate.mean import WeightedMean
from shoal.aggregate.outer import OuterNesterov, OuterSGD

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {"mean": WeightedMean}
OUTER_OPTIMIZERS: dict[str, Callable[..., OuterOptimizer]] = {"sgd": OuterSGD, "nesterov": OuterNesterov}

__all__ = [
    "AGGREGATORS",
    "OUTER_OPTIMIZERS",
    "Aggregator",
    "Combine",
    "Gathering",
    "OuterOptimizer",
    "Sealed",
]
