"""One fold on seeded data, its golden hashes, and a slow reference in numpy.

Run as a program it prints the hashes, so that other processes with other threads can be compared:
`python folding.py THREADS`.
"""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.layout import FragmentSpec, Layout, make_layout
from shoal.codec import CHUNK
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state, state_hash
from shoal.replica.update import encode_update
from shoal.strategy.pieces import Strategy
from shoal.strategy.presets import expand

Vector = npt.NDArray[np.float32]
CODECS = ("int8", "fp16", "none")
OUTERS = ("sgd", "nesterov")
FRAGMENTS = (1, 3)
WEIGHTS = (7, 64, 1, 13)
ROUNDS = 2
SIZES = (CHUNK + 4321, 3, CHUNK * 2, 1, 7777)
CASES = list(itertools.product(CODECS, OUTERS, FRAGMENTS))


def name_of(case: tuple[str, str, int]) -> str:
    return "-".join(map(str, case))


def rules_of(codec: str, outer: str) -> FoldRules:
    parameters = {"kind": outer, "lr": 0.7} | ({"momentum": 0.9} if outer == "nesterov" else {})
    section = {"preset": "diloco", "codec": {"kind": codec}, "outer": parameters}
    return Strategy.model_validate(expand(section)).fold_rules()


def layout_of(fragments: int) -> Layout:
    """The cuts are fixed here: where a run's fragments begin is in its log, and no part of the arithmetic."""
    whole = make_layout([(f"t{i}", (size,)) for i, size in enumerate(SIZES)])
    cuts = {1: (0, whole.numel), 3: (0, SIZES[0], sum(SIZES[:3]), whole.numel)}[fragments]
    spans = enumerate(itertools.pairwise(cuts))
    return Layout(whole.tensors, tuple(FragmentSpec(f"part{i}", start, stop) for i, (start, stop) in spans))


def values_of(seed: int, numel: int) -> Vector:
    """Seeded values without a library's generator, whose stream might change: a linear congruence."""
    steps = np.arange(1, numel + 1, dtype=np.uint64) * np.uint64(6364136223846793005)
    mixed = steps + np.uint64(seed * 1442695040888963407 % 2**64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    top = (mixed >> np.uint64(40)).astype(np.float32)
    return (top / np.float32(1 << 23) - np.float32(1)) * np.float32(0.01 * (1 + seed))


def updates_of(rules: FoldRules, layout: Layout, round_number: int) -> list[SealedBlob]:
    blobs = []
    for number, weight in enumerate(WEIGHTS):
        flat = torch.from_numpy(values_of(10 * round_number + number + 1, layout.numel))
        parts = [(i, rules.codec.encode(flat[p.start : p.stop])) for i, p in enumerate(layout.fragments)]
        blobs.append(SealedBlob(encode_update(parts), weight))
    return blobs


def folded(case: tuple[str, str, int]) -> State:
    codec, outer, fragments = case
    rules, layout = rules_of(codec, outer), layout_of(fragments)
    state = initial_state(layout, torch.from_numpy(values_of(0, layout.numel)), rules.outer.slots)
    for round_number in range(ROUNDS):
        every = tuple(range(len(layout.fragments)))
        state = fold(state, every, updates_of(rules, layout, round_number), rules).state
    return state


def hashes() -> dict[str, str]:
    return {name_of(case): state_hash(folded(case)) for case in CASES}


# --- the reference -----------------------------------------------------------------------------------------


def _decoded(codec: str, payload: bytes, numel: int, share: np.float32) -> Vector:
    if codec == "int8":
        scales = np.frombuffer(payload, "<f4", count=-(-numel // 256)) * share
        codes = np.frombuffer(payload, np.int8, offset=4 * len(scales)).astype(np.float32)
        return codes * np.repeat(scales, 256)[:numel]
    return np.frombuffer(payload, "<f4" if codec == "none" else "<f2").astype(np.float32) * share


def reference(case: tuple[str, str, int]) -> tuple[Vector, Vector]:
    """Parameters and momentum, elementwise in float32, one operation at a time."""
    codec, outer, fragments = case
    rules, layout = rules_of(codec, outer), layout_of(fragments)
    params, momentum = values_of(0, layout.numel).copy(), np.zeros(layout.numel, np.float32)
    lr, decay = np.float32(0.7), np.float32(0.9)
    for round_number in range(ROUNDS):
        for part in layout.fragments:
            here = slice(part.start, part.stop)
            total = np.zeros(part.numel, np.float32)
            for number, weight in enumerate(WEIGHTS):
                share = np.float32(weight / sum(WEIGHTS))
                flat = torch.from_numpy(values_of(10 * round_number + number + 1, layout.numel))
                payload = rules.codec.encode(flat[here])
                decoded = _decoded(codec, payload, part.numel, share)
                total = decoded if number == 0 else total + decoded
            if outer == "nesterov":
                momentum[here] = momentum[here] * decay + total
                total = total + momentum[here] * decay
            params[here] = params[here] - total * lr
    return params, momentum


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(hashes()))
