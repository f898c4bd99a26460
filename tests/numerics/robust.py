"""Every robust rule after everything that may come before it, on seeded data with a liar in it, and their hashes. With
int8 one fragment is long enough to be compared by sketches.

Run as a program it prints the hashes, so that other processes with other threads, and other devices, can be compared:
`python robust.py THREADS [DEVICE]`.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.aggregate.base import Guarded
from shoal.aggregate.sketch import EXACT_CHUNKS
from shoal.base.layout import Layout, make_layout
from shoal.codec import CHUNK, CODECS
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state, state_hash
from shoal.replica.update import encode_update

if __name__ == "__main__":
    import folding
else:
    from . import folding

UPDATES, LIARS, ROUNDS = 11, 2, 2
SEED = "c0ffee"
CODES: dict[str, tuple[dict[str, Any], int]] = {
    "int8": ({}, EXACT_CHUNKS * CHUNK + 4321),
    "chunked-top-k": ({"density": 0.1}, 2 * CHUNK + 4321),
}
"""By codec, its parameters and how long the longer fragment is."""
STAGES: dict[str, dict[str, Any]] = {
    "alone": {},
    "nnm": {"nnm": True},
    "bucket": {"bucket": 2},
    "even": {"even": True, "distinct": True, "nnm": True},
}
RULES = [kind for kind in sorted(AGGREGATORS) if isinstance(AGGREGATORS[kind](), Guarded)]
CASES = [
    (rule, stage, codec)
    for rule, stage, codec in itertools.product(RULES, STAGES, CODES)
    if rule != "robust" or stage == "alone"
]


def layout_of(longer: int) -> Layout:
    return make_layout([("longer", (longer,)), ("short", (777,))], 2)


def folded(rule: str, stage: str, codec: str, device: str = "cpu") -> State:
    parameters = STAGES[stage] | {"f": LIARS}
    coding, longer = CODES[codec]
    rules = FoldRules(
        CODECS[codec](**coding), AGGREGATORS[rule](**parameters), OUTER_OPTIMIZERS["nesterov"]()
    )
    layout = layout_of(longer)
    begun = initial_state(layout, torch.from_numpy(folding.values_of(0, layout.numel)), rules.outer.slots)
    slots = {name: vector.to(device) for name, vector in begun.slots.items()}
    state = State(layout, begun.params.to(device), slots)
    for round_number in range(ROUNDS):
        updates = [sealed(rules, layout, round_number, number) for number in range(UPDATES)]
        state = fold(state, (0, 1), updates, rules, seed=SEED + str(round_number)).state
    return state


def sealed(rules: FoldRules, layout: Layout, round_number: int, number: int) -> SealedBlob:
    """The first lies: it is the second, thirty times as long."""
    common = torch.from_numpy(folding.values_of(100 + round_number, layout.numel))
    own = torch.from_numpy(folding.values_of(20 * round_number + max(number, 1) + 1, layout.numel))
    flat = common * 0.5 + own * (30.0 if number == 0 else 1.0)
    parts = [(i, rules.codec.encode(flat[p.start : p.stop], 7)) for i, p in enumerate(layout.fragments)]
    return SealedBlob(encode_update(parts), 1 + number % 3)


def hashes(device: str = "cpu") -> dict[str, str]:
    return {"+".join(case): state_hash(folded(*case, device)) for case in CASES}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(hashes(*sys.argv[2:3]), indent=4))
