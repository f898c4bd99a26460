"""Every codec as a digest on seeded data: a round of warm-up, then three at half the outer rate, and their hashes.

Run as a program it prints the hashes, so that other processes with other threads, and other devices, can be compared:
`python digests.py THREADS [DEVICE]`.
"""

from __future__ import annotations

import itertools
import json
import sys

import torch

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.codec import CODECS, UNEQUAL_CODECS
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state, state_hash
from shoal.replica.update import encode_update

if __name__ == "__main__":
    import folding
else:
    from . import folding

ROUNDS = 4
OUTERS = {"sign": {"lr": 0.01}, "nesterov": {"lr": 0.7}}
CASES = list(itertools.product(sorted(set(CODECS) - UNEQUAL_CODECS), sorted(OUTERS)))


def rules_of(codec: str, outer: str) -> FoldRules:
    return FoldRules(
        CODECS["int8"](),
        AGGREGATORS["mean"](),
        OUTER_OPTIMIZERS[outer](**OUTERS[outer]),
        warmup_rounds=1,
        digest=CODECS[codec](),
    )


def folded(codec: str, outer: str, device: str = "cpu") -> State:
    rules, layout = rules_of(codec, outer), folding.layout_of(3)
    first = torch.from_numpy(folding.values_of(0, layout.numel))
    begun = initial_state(layout, first, rules.slots)
    slots = {name: vector.to(device) for name, vector in begun.slots.items()}
    state = State(layout, begun.params.to(device), slots)
    for place in range(ROUNDS):
        fragments = (0, 1, 2) if place < ROUNDS - 1 else (0, 2)
        blobs = [_blob(rules, state, fragments, place, number) for number in range(len(folding.WEIGHTS))]
        updates = [
            SealedBlob(blob, weight, place=place) for blob, weight in zip(blobs, folding.WEIGHTS, strict=True)
        ]
        state = fold(state, fragments, updates, rules, rate=0.5 if place else 1.0, place=place).state
    return state


def _blob(rules: FoldRules, state: State, fragments: tuple[int, ...], place: int, number: int) -> bytes:
    flat = torch.from_numpy(folding.values_of(10 * place + number + 1, state.layout.numel))
    parts = [(index, state.layout.fragments[index]) for index in fragments]
    codec = rules.codec_at(place)
    return encode_update([(index, codec.encode(flat[part.start : part.stop])) for index, part in parts])


def hashes(device: str = "cpu") -> dict[str, str]:
    return {"+".join(case): state_hash(folded(*case, device)) for case in CASES}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(hashes(*sys.argv[2:3]), indent=4))
