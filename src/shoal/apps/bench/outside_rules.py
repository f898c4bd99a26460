"""The robust rules of the library `byzfl`, if it is installed: a yardstick for our own.

In flow updates as rows of a matrix; out flows their aggregate. Invariant: only its aggregators are loaded; the rest of
it wants torchvision, which would bring another torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable

import torch

NAME = "byzfl"
Rule = Callable[[torch.Tensor], torch.Tensor]


def byzfl_rules(liars: int) -> dict[str, Rule]:
    """Its rules by our names, for so many liars; none if it is not installed."""
    if NAME not in sys.modules:
        found = importlib.util.find_spec(NAME)
        if found is None or found.submodule_search_locations is None:
            return {}
        bare = types.ModuleType(NAME)
        bare.__path__, bare.__spec__ = list(found.submodule_search_locations), found
        sys.modules[NAME] = bare
    theirs = importlib.import_module(f"{NAME}.aggregators")
    rules: dict[str, Rule] = {
        "mean": theirs.Average(),
        "median": theirs.Median(),
        "trimmed-mean": theirs.TrMean(f=liars),
        "krum": theirs.Krum(f=liars),
        "multi-krum": theirs.MultiKrum(f=liars),
        "geometric-median": theirs.GeometricMedian(T=8),
        "centred-clipping": theirs.CenteredClipping(L=3),
    }
    mixing, multi_krum = theirs.NNM(f=liars), rules["multi-krum"]
    return {**rules, "robust": lambda rows: multi_krum(mixing(rows))}
