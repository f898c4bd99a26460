"""The codecs' speed and size, against copying the same float32 values in the same run.

In flow a number of parameters and a device; out flow, for every registered codec, bits a parameter and gigabytes of
float32 a second, encoded and decoded. Invariant: best of a few, copy and codec in turn, into memory that was
touched before; decoding includes opening, in the ranges in which the fold asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from shoal.apps.bench import quantisers
from shoal.codec import CODECS, Codec
from shoal.codec.base import ranges
from shoal.codec.feedback import encode_with_feedback
from shoal.training.device import pick_device

REPEATS = 3
WITH_FEEDBACK = ("two-bit", "ternary")
Say = Callable[[str], None]
Row = dict[str, float]


def measure(params: int, device: str, threads: int, say: Say) -> dict[str, Any]:
    """Every codec with its defaults, those that want error feedback with it too, and others' quantisers."""
    torch.set_num_threads(threads)
    stopwatch = Stopwatch(params, pick_device(device), threads)
    codecs: dict[str, Row] = {}
    for name in [*CODECS, *(f"{kind}+feedback" for kind in WITH_FEEDBACK)]:
        kind, _, feedback = name.partition("+")
        codecs[name] = _codec(stopwatch, CODECS[kind](), bool(feedback))
        say(f"{name:20} " + ", ".join(f"{key} {value:g}" for key, value in codecs[name].items()))
    others: dict[str, Any] = {}
    for name, find in quantisers.OTHERS.items():
        quantiser = find()
        others[name] = _other(stopwatch, quantiser) if quantiser else "not installed"
        say(f"{name:20} {others[name]}")
    for row in [*codecs.values(), *(other for other in others.values() if other != "not installed")]:
        stopwatch.compare(row)
    return {
        "params": params,
        "device": device,
        "threads": threads,
        "copy_gb_s": round(stopwatch.copy_gb_s(), 3),
        "codecs": codecs,
        "others": others,
    }


class Stopwatch:
    """Values to encode, memory to decode to, and the time that copying takes meanwhile."""

    def __init__(self, params: int, device: torch.device, threads: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.values = torch.randn(params, generator=random).mul_(1e-3).to(device)
        self.out = torch.zeros_like(self.values)
        self._threads = threads
        self._copy_s = float("inf")

    def best_s(self, job: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(REPEATS):
            self._copy_s = min(self._copy_s, self._timed(lambda: self.out.copy_(self.values)))
            best = min(best, self._timed(job))
        return best

    def copy_gb_s(self) -> float:
        return self.gb_s(self._copy_s)

    def gb_s(self, seconds: float) -> float:
        """Of float32 values, for each core."""
        return 4 * self.values.numel() / seconds / 1e9 / self._threads

    def speeds(self, bits: float, encode: Callable[[], object], decode: Callable[[], object]) -> Row:
        return {
            "bits_per_param": round(bits, 4),
            "encode_gb_s": round(self.gb_s(self.best_s(encode)), 3),
            "decode_gb_s": round(self.gb_s(self.best_s(decode)), 3),
        }

    def compare(self, row: Row) -> None:
        """Against the best copy of the whole run."""
        for way in ("encode", "decode"):
            row[f"{way}_ratio"] = round(row[f"{way}_gb_s"] / self.copy_gb_s(), 4)

    def _timed(self, job: Callable[[], object]) -> float:
        self._wait()
        began = time.perf_counter()
        job()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.values.device.type == "cuda":
            torch.cuda.synchronize()


def _codec(stopwatch: Stopwatch, codec: Codec, feedback: bool) -> Row:
    values, out = stopwatch.values, stopwatch.out
    residual = torch.zeros_like(values)
    payload = codec.encode(values)

    def encode() -> None:
        if feedback:
            encode_with_feedback(codec, values, residual)
        else:
            codec.encode(values)

    def decode() -> None:
        source = codec.open(memoryview(payload), len(values))
        assert source is not None
        for start, stop in ranges(source, len(values), out.device):
            source.decode(start, stop, 1.0, out[start:stop])

    return stopwatch.speeds(8 * len(payload) / len(values), encode, decode)


def _other(stopwatch: Stopwatch, quantiser: quantisers.Quantiser) -> Row:
    encoded = quantiser.encode(stopwatch.values)
    return stopwatch.speeds(
        quantiser.bits,
        lambda: quantiser.encode(stopwatch.values),
        lambda: quantiser.decode(encoded),
    )


def table(result: dict[str, Any]) -> list[str]:
    """The result for people, a line for each codec."""
    lines = [f"copy {result['copy_gb_s']} GB/s on {result['device']}, {result['threads']} thread(s)"]
    lines.append(f"{'':20} {'bits':>8} {'encode GB/s':>12} {'decode GB/s':>12}   of a copy")
    for name, row in {**result["codecs"], **result["others"]}.items():
        if isinstance(row, str):
            lines.append(f"{name:20} {row}")
            continue
        bits, *speeds, encode, decode = row.values()
        shown = " ".join(f"{speed:12.3f}" for speed in speeds)
        lines.append(f"{name:20} {bits:8.3f} {shown}   {encode:.0%}, {decode:.0%}")
    return lines
