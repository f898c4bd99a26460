"""Many updates -> one -> new state. The registries that a recipe's `aggregate.kind` and `outer.kind` name."""

from __future__ import annotations

from collections.abc import Callable

from shoal.aggregate.adam import OuterAdam
from shoal.aggregate.base import Aggregator, Combine, Gathering, OuterOptimizer, Sealed
from shoal.aggregate.bulyan import bulyan
from shoal.aggregate.centred_clipping import centred_clipping
from shoal.aggregate.clipped_mean import ClippedMean
from shoal.aggregate.coordinates import median, trimmed_mean
from shoal.aggregate.delayed import DelayedNesterov
from shoal.aggregate.direction_mean import DirectionMean
from shoal.aggregate.geometric_median import geometric_median
from shoal.aggregate.heloco import HeLoCo
from shoal.aggregate.krum import krum, multi_krum
from shoal.aggregate.mean import WeightedMean
from shoal.aggregate.onebit import OneBitAdam
from shoal.aggregate.outer import OuterNesterov, OuterSGD
from shoal.aggregate.robust import robust
from shoal.aggregate.sender_mean import SenderMean
from shoal.aggregate.sign import OuterSign

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": WeightedMean,
    "sender-mean": SenderMean,
    "clipped-mean": ClippedMean,
    "direction-mean": DirectionMean,
    "heloco": HeLoCo,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "geometric-median": geometric_median,
    "centred-clipping": centred_clipping,
    "robust": robust,
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
