"""Every aggregator with every outer optimiser on seeded data: four rounds, some updates late, and their hashes. (Robust
rules want more updates, and do not know an outer optimiser from another: `robust.py`.)

Run as a program it prints the hashes, so that other processes with other threads, and other devices, can be compared:
`python rules.py THREADS [DEVICE]`.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.aggregate.base import Guarded
from shoal.base.layout import Layout
from shoal.codec import CODECS
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state, state_hash
from shoal.replica.update import encode_update

if __name__ == "__main__":
    import folding
else:
    from . import folding

ROUNDS = 4
WHOLE = sum(folding.WEIGHTS) + 15
AGES = ((0, 0, 0), (1, 1, 1), (0, 2, 5), (0, 0, 0))
"""By update and fragment."""
AGGREGATOR_PARAMETERS: dict[str, dict[str, Any]] = {"clipped-mean": {"multiple": 1.0}}
OUTER_PARAMETERS: dict[str, dict[str, Any]] = {
    "delayed-nesterov": {"period": 3},
    "adam": {"lr": 0.01, "freeze_after": 2},
    "onebit-adam": {"lr": 0.01, "freeze_after": 2, "weight_decay": 0.1},
    "sign": {"lr": 0.01, "weight_decay": 0.1},
}
PLAIN = [kind for kind in sorted(AGGREGATORS) if not isinstance(AGGREGATORS[kind](), Guarded)]
CASES = list(itertools.product(PLAIN, sorted(OUTER_OPTIMIZERS)))


def folded(aggregator: str, outer: str, device: str = "cpu") -> State:
    rules = FoldRules(
        CODECS["int8"](),
        AGGREGATORS[aggregator](**AGGREGATOR_PARAMETERS.get(aggregator, {})),
        OUTER_OPTIMIZERS[outer](**OUTER_PARAMETERS.get(outer, {})),
    )
    layout = folding.layout_of(3)
    first = torch.from_numpy(folding.values_of(0, layout.numel))
    begun = initial_state(layout, first, rules.outer.slots)
    slots = {name: vector.to(device) for name, vector in begun.slots.items()}
    state = State(layout, begun.params.to(device), slots)
    for round_number in range(ROUNDS):
        # The last round leaves a fragment out: counts and momenta are each fragment's own.
        fragments = (0, 1, 2) if round_number < ROUNDS - 1 else (0, 2)
        updates = updates_of(rules, layout, fragments, round_number)
        state = fold(state, fragments, updates, rules, WHOLE).state
    return state


def updates_of(
    rules: FoldRules, layout: Layout, fragments: tuple[int, ...], round_number: int
) -> list[SealedBlob]:
    updates = []
    for number, (weight, ages) in enumerate(zip(folding.WEIGHTS, AGES, strict=True)):
        flat = torch.from_numpy(folding.values_of(10 * round_number + number + 1, layout.numel))
        parts = [(i, layout.fragments[i]) for i in fragments]
        blob = encode_update([(i, rules.codec.encode(flat[part.start : part.stop])) for i, part in parts])
        updates.append(SealedBlob(blob, weight, tuple(ages[i] for i in fragments)))
    return updates


def hashes(device: str = "cpu") -> dict[str, str]:
    return {"+".join(case): state_hash(folded(*case, device)) for case in CASES}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(hashes(*sys.argv[2:3]), indent=4))
