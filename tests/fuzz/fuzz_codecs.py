"""Hostile bytes for every registered codec: `python tests/fuzz/fuzz_codecs.py [inputs] [seed]`.

In flow sound payloads, mutated; out flows a count, or an error at the first input that breaks a promise. With
atheris installed (`pip install atheris`) and `--atheris`, coverage leads the mutations; else a seeded generator does.

The promises: `open` and a full decode never raise, never read outside the payload (it lies within a larger buffer of
poison that would show), give only finite values, and never allocate much more than the fragment.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.codec import CHUNK, CODECS, Codec

SIZES = (1, 7, 64, 300, 1000)
VARIANTS: dict[str, list[dict[str, object]]] = {
    "int8": [{"block": 8}],
    "int4": [{"block": 8}],
    "two-bit": [{"chunk": 64}],
    "one-bit": [{"chunk": 64}],
    "powersgd": [{"rank": 2, "columns": 30}],
    "dct": [{"chunk": 8, "then": "two-bit"}],
    "chain": [{"chunk": 64, "then": "none"}, {"first": "dct", "chunk": 16, "then": "int4"}],
}
"""Beside the defaults."""
TELLING = [
    bytes.fromhex(text)
    for text in (
        "0000c07f",
        "000080ff",
        "ffff7f7f",
        "ffffffff",
        "00000000",
        "00000080",
        "ffffffffffffffff",
        "007c",
    )
]
"""NaN, minus infinity, the largest float, all ones, zero, minus zero, 2^64 - 1, infinity in fp16."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    codec: Codec
    numel: int
    sound: tuple[bytes, ...]


def targets(codecs: Mapping[str, Callable[..., Codec]] = CODECS) -> list[Target]:
    """Every codec, with every size, and sound payloads to begin from."""
    found = []
    for kind in sorted(codecs):
        for parameters in [{}, *VARIANTS.get(kind, [])]:
            codec = codecs[kind](**parameters)
            for numel in SIZES:
                random = torch.Generator().manual_seed(numel)
                values = torch.randn(numel, generator=random)
                sparse = values * (torch.rand(numel, generator=random) < 0.1)
                sound = tuple(codec.encode(each) for each in (values, sparse, torch.zeros(numel)))
                found.append(Target(f"{kind} {parameters} {numel}", codec, numel, sound))
    return found


def check(target: Target, payload: bytes) -> bool:
    """Open and decode it all; whether it opened."""
    around = bytes([0xFF]) * 64
    inside = memoryview(around + payload + around)[64 : 64 + len(payload)]
    source = target.codec.open(inside, target.numel)
    if source is None:
        return False
    out = torch.full((target.numel,), float("nan"))
    for start in range(0, target.numel, CHUNK):
        stop = min(start + CHUNK, target.numel)
        source.decode(start, stop, 1.0, out[start:stop])
    if not bool(torch.isfinite(out).all()):
        raise AssertionError(f"{target.name}: {payload.hex()} decodes to what is not finite")
    return True


def mutate(sound: bytes, random: np.random.Generator) -> bytes:
    """A few changes: bits, telling numbers, cuts, repeats, noise."""
    data = bytearray(sound)
    for _ in range(int(random.integers(1, 4))):
        at = int(random.integers(0, len(data) + 1))
        way = int(random.integers(0, 6))
        if way == 0 and at < len(data):
            data[at] ^= 1 << int(random.integers(0, 8))
        elif way == 1:
            change = TELLING[int(random.integers(0, len(TELLING)))]
            data[at : at + len(change)] = change
        elif way == 2:
            del data[at : at + int(random.integers(1, 9))]
        elif way == 3:
            data[at:at] = random.bytes(int(random.integers(1, 9)))
        elif way == 4:
            data[at : at + 8] = random.bytes(8)
        else:
            data[at:at] = data[max(0, at - int(random.integers(1, 17))) : at]
    return bytes(data)


def fuzz(inputs: int, seed: int) -> tuple[int, int]:
    """So many inputs over all targets in turn; how many were tried and how many opened. Raises at a broken promise."""
    random, every, opened = np.random.default_rng(seed), targets(), 0
    for number in range(inputs):
        target = every[number % len(every)]
        sound = target.sound[int(random.integers(0, len(target.sound)))]
        payload = mutate(sound, random)
        try:
            opened += check(target, payload)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}, {target.name}: {payload.hex()}") from error
    return inputs, opened


def largest_allocation(inputs: int, seed: int) -> int:
    """Bytes of Python and numpy memory that the costliest of so many inputs took."""
    random, every, most = np.random.default_rng(seed), targets(), 0
    tracemalloc.start()
    try:
        for number in range(inputs):
            target = every[number % len(every)]
            payload = mutate(target.sound[0], random)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            check(target, payload)
            most = max(most, tracemalloc.get_traced_memory()[1] - before - 3 * len(payload))
    finally:
        tracemalloc.stop()
    return most


def _led_by_coverage(inputs: int, seed: int) -> None:
    """libFuzzer's mutations, from sound payloads, towards branches not yet seen. Ends the process."""
    import atheris

    for name in [name for name in sys.modules if name.startswith("shoal.codec")]:
        del sys.modules[name]
    with atheris.instrument_imports(include=["shoal.codec"]):
        every = targets(importlib.import_module("shoal.codec").CODECS)

    def one(data: bytes) -> None:
        if len(data) > 2:
            check(every[int.from_bytes(data[:2], "little") % len(every)], data[2:])

    with tempfile.TemporaryDirectory() as corpus:
        for number, target in enumerate(every):
            for place, sound in enumerate(target.sound):
                Path(corpus, f"{number}-{place}").write_bytes(number.to_bytes(2, "little") + sound)
        atheris.Setup([sys.argv[0], corpus, f"-atheris_runs={inputs}", f"-seed={seed or 1}"], one)
        atheris.Fuzz()


def main(arguments: list[str]) -> None:
    numbers = [int(argument) for argument in arguments if argument.isdecimal()]
    inputs, seed = [*numbers, *(100_000, 0)[len(numbers) :]]
    torch.set_num_threads(1)
    if "--atheris" in arguments:
        _led_by_coverage(inputs, seed)
        return
    began = time.monotonic()
    tried, opened = fuzz(inputs, seed)
    print(
        f"{tried} inputs, {opened} opened, {time.monotonic() - began:.0f} s, seed {seed}: every promise held"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
