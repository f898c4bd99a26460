"""Whether kernels encode, decode and add up to the bits of torch on a CPU: `python tests/unit/codec/on_gpu.py`.

Prints one line of JSON. Kernels run on a GPU where there is one, else in Triton's interpreter (TRITON_INTERPRET=1), on
fewer and smaller cases. Without Triton nothing is compared, and `kernels` says "none".
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator

import torch

from shoal.base.errors import ShoalError
from shoal.codec import CODECS, Codec
from shoal.codec.base import CHUNK, decode_whole, ranges
from shoal.codec.feedback import encode_with_feedback
from shoal.codec.fused import FusedCodec, encode_fused
from shoal.codec.packed import PackedSource, WeightedSum

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")

VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("int8", {}),
    ("int8", {"block": 1}),
    ("int8", {"block": 32768}),
    ("int4", {}),
    ("int4", {"block": 8}),
    ("two-bit", {}),
    ("two-bit", {"chunk": 8}),
    ("two-bit", {"chunk": 32768}),
    ("one-bit", {}),
    ("one-bit", {"chunk": 64}),
    ("chunked-top-k", {}),
    ("chunked-top-k", {"density": 0.25, "bits": 1}),
    ("chunked-top-k", {"density": 1 / 64, "chunk": 16}),
    ("chunked-top-k", {"density": 0.0301, "chunk": 16384}),
]
SIZES = [1, 7, 300, 4095, 4096, 4097, CHUNK + 1, 700_001, 4_000_000] if GPU else [1, 300, 4097, 8192]
SLOW = 4000
SLOW_FIELDS = ("equal ones", "few and far apart")
"""From this size on the interpreter takes its time, and gets these only."""
FACTORS = (0.3333333432674408, 1.0, -0.10000000149011612)


def fields(numel: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Values that are hard to get right."""
    random = torch.Generator().manual_seed(numel)
    normal = torch.randn(numel, generator=random)
    steps = torch.exp(20 * torch.randn(-(-numel // 512), 1, generator=random))
    mixed = normal * steps.expand(-1, 512).reshape(-1)[:numel]
    mixed[torch.rand(numel, generator=random) < 0.1] = 0.0
    mixed[torch.rand(numel, generator=random) < 0.1] = -0.0
    yield "normal", normal
    yield "of all sizes", mixed.clamp_(-1e30, 1e30)
    yield "equal ones", (normal * 2).round()
    yield "subnormal", normal * 1e-43
    yield "large", normal.clamp(-3, 3) * 1e34
    few = torch.exp(30 * normal.clamp(-2, 2)) * (torch.rand(numel, generator=random) < 0.02)
    yield "few and far apart", few.copysign_(mixed)
    yield "one alone", torch.zeros(numel).index_fill_(0, torch.tensor([numel // 2]), -1.0)
    yield "zeros", torch.zeros(numel).copysign_(normal)
    yield "constant", torch.full((numel,), 0.1)


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.cpu().view(torch.int32)


def same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and torch.equal(bits(one), bits(other))


def check_encoding(codec: Codec, update: torch.Tensor, other: torch.Tensor) -> Iterator[str]:
    """What the kernel does wrong, in words."""
    assert isinstance(codec, FusedCodec)
    for residual, decay in ((None, 1.0), (other, 0.9)):
        payload, left = encode_with_feedback(codec, update, residual, 0, decay)
        there = None if residual is None else residual.to(DEVICE)
        found = encode_fused(codec, update.to(DEVICE), there, decay)
        if found is None or found[0] != payload:
            yield f"bytes, decay {decay}"
        elif not same(found[1], left):
            yield f"residual, decay {decay}"
        if GPU:
            public = encode_with_feedback(codec, update.to(DEVICE), there, 0, decay)
            if public[0] != payload or not same(public[1], left):
                yield f"encode_with_feedback, decay {decay}"
    plain = encode_fused(codec, update.to(DEVICE), None, None)
    if plain is None or plain[0] != codec.encode(update) or plain[1] is not None:
        yield "bytes without feedback"


def check_decoding(codec: Codec, update: torch.Tensor, other: torch.Tensor) -> Iterator[str]:
    numel = len(update)
    opened = [codec.open(memoryview(codec.encode(values)), numel) for values in (update, other, update)]
    sources = [source for source in opened if source is not None]
    expected, scratch, out = torch.empty(numel), torch.empty(numel), torch.empty(numel, device=DEVICE)
    add_up = WeightedSum(sources, FACTORS)
    for start, stop in ranges(sources[0], numel, torch.device("cpu")):
        add_up(start, stop, expected[start:stop], scratch[start:stop])
    one = decode_whole(sources[0], numel)
    if not isinstance(sources[0], PackedSource):
        return
    from shoal.codec.kernels.launching import add_dense, upload

    form = {"bits": sources[0].bits, "block": sources[0].block}
    packed = [(source.books, source.packed) for source in sources if isinstance(source, PackedSource)]
    many, single = upload(packed, DEVICE), upload(packed[:1], DEVICE)
    factors = torch.tensor(FACTORS, device=DEVICE)
    for start, stop in ranges(sources[0], numel, DEVICE):
        add_dense(many, factors, start, out[start:stop], onto=False, **form)
    if not same(out, expected):
        yield "sum of three"
    out = other.clone().to(DEVICE)
    for start, stop in ranges(sources[0], numel, DEVICE):
        add_dense(single, torch.ones(1, device=DEVICE), start, out[start:stop], onto=True, **form)
    if not same(out, other + one):
        yield "added onto"
    if GPU:
        for start, stop in ranges(sources[0], numel, DEVICE):
            add_up(start, stop, out[start:stop], out[start:stop])
        if not same(out, expected):
            yield "WeightedSum"


def check_refusals(codec: Codec, numel: int) -> Iterator[str]:
    """What must not be published is refused in the same words."""
    assert isinstance(codec, FusedCodec)
    random = torch.Generator().manual_seed(1)
    for bad in (float("nan"), float("inf"), float("-inf"), 3.4e38):
        values = torch.randn(numel, generator=random)
        values[numel // 3] = bad
        try:
            expected: object = codec.encode(values)
        except ShoalError as error:
            expected = (error.code, error.cause)
        found: object = encode_fused(codec, values.to(DEVICE), None, None)
        if isinstance(expected, bytes):
            if found is None or found != (expected, None):
                yield f"{bad} is fine"
        elif found is not None:
            yield f"{bad} was not refused"
        if GPU:
            try:
                found = codec.encode(values.to(DEVICE))
            except ShoalError as error:
                found = (error.code, error.cause)
            if found != expected:
                yield f"{bad}: {found} is not {expected}"


def compare() -> tuple[int, list[str]]:
    checked, failed = 0, []
    for kind, options in VARIANTS:
        codec = CODECS[kind](**options)
        for numel in SIZES:
            other = torch.randn(numel, generator=torch.Generator().manual_seed(7))
            for name, values in fields(numel):
                if not GPU and numel > SLOW and (options or name not in SLOW_FIELDS):
                    continue
                wrong = [*check_encoding(codec, values, other), *check_decoding(codec, values, other)]
                failed += [f"{kind} {options} {numel} {name}: {what}" for what in wrong]
                checked += 1
        failed += [f"{kind} {options}: {what}" for what in check_refusals(codec, 5000 if GPU else 500)]
    return checked, failed


def main() -> int:
    began = time.perf_counter()
    if importlib.util.find_spec("triton") is None:
        print(json.dumps({"ok": True, "kernels": "none", "checked": 0, "failed": []}))
        return 0
    if not GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports a kernel
    checked, failed = compare()
    result = {"ok": not failed, "kernels": "gpu" if GPU else "interpreter", "checked": checked}
    if GPU:
        from shoal.codec.kernels import usable

        result["usable"] = usable(DEVICE)
        result["ok"] = result["ok"] and result["usable"]
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({**result, "failed": failed[:20], "failures": len(failed), "seconds": seconds}))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
