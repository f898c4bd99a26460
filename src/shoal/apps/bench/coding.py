"""The codecs' speed and size, against copying the same float32 values in the same run.

In flow a number of parameters and a device; out flow, for every registered codec, bits a parameter and gigabytes of
float32 a second, encoded to bytes in the CPU's memory and decoded; and on a device with kernels the passes that they
make there, alone. Invariant: best of a few, copy and codec in turn, into memory that was touched before; decoding
includes opening, in the ranges in which the fold asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from shoal.apps.bench import quantisers
from shoal.apps.progress import tracked
from shoal.codec import CODECS, Codec
from shoal.codec.base import ranges
from shoal.codec.feedback import encode_with_feedback
from shoal.codec.fused import FusedCodec
from shoal.codec.kernels import usable
from shoal.codec.packed import PackedSource, WeightedSum
from shoal.training.device import pick_device

REPEATS = 3
ENOUGH_S = 2.0
"""What takes as long is not repeated."""
LAUNCHES = 10
"""Passes on a device are timed by so many in a row."""
UPDATES = 8
"""So many updates are added up in one pass."""
WITH_FEEDBACK = ("int8", "two-bit", "chunked-top-k", "ternary")
Say = Callable[[str], None]
Row = dict[str, float]


def measure(params: int, device: str, threads: int, say: Say) -> dict[str, Any]:
    """Every codec with its defaults, those that want error feedback with it too, and others' quantisers."""
    torch.set_num_threads(threads)
    stopwatch = Stopwatch(params, pick_device(device), threads)
    codecs: dict[str, Row] = {}
    names = [*CODECS, *(f"{kind}+feedback" for kind in WITH_FEEDBACK)]
    for name in tracked(names, "codecs"):
        kind, _, feedback = name.partition("+")
        codecs[name] = _codec(stopwatch, CODECS[kind](), bool(feedback))
        say(f"{name:22} " + ", ".join(f"{key} {value:g}" for key, value in codecs[name].items()))
    others: dict[str, Any] = {}
    for name, find in tracked(quantisers.OTHERS.items(), "others"):
        quantiser = find()
        others[name] = _other(stopwatch, quantiser) if quantiser else "not installed"
        say(f"{name:22} {others[name]}")
    for row in [*codecs.values(), *(other for other in others.values() if other != "not installed")]:
        stopwatch.compare(row)
    return {
        "params": params,
        "device": device,
        "threads": threads,
        "copy_gb_s": round(stopwatch.copy_gb_s(), 3),
        "codecs": codecs,
        "others": others,
        "kernels": kernels(stopwatch, say),
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
            self._copy_s = min(self._copy_s, self._timed(self.copy))
            best = min(best, self._timed(job))
            if best > ENOUGH_S:
                break
        return best

    def copy(self) -> None:
        self.out.copy_(self.values)

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

    def pass_s(self, launch: Callable[[], object]) -> float:
        """One pass on a GPU, by its own clock: the best of several rows of them."""
        launch()
        best = float("inf")
        for _ in range(REPEATS):
            begin, end = _event(), _event()
            begin.record()
            for _ in range(LAUNCHES):
                launch()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000 / LAUNCHES)
        return best

    def _timed(self, job: Callable[[], object]) -> float:
        self._wait()
        began = time.perf_counter()
        job()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.values.device.type == "cuda":
            torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


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


# --- passes on a device ------------------------------------------------------------------------------------


def kernels(stopwatch: Stopwatch, say: Say) -> dict[str, Row] | str:
    """By codec, what its kernels do on the device, without what goes to the CPU and what is done there. `ratio` is
    values a second against a copy's; `moved` is bytes read and written a second against a copy's."""
    if not usable(stopwatch.values.device):
        return "none for this device"
    copy_s = stopwatch.pass_s(stopwatch.copy)
    rows: dict[str, Row] = {"copy": {"encode_gb_s": round(stopwatch.gb_s(copy_s), 1)}}
    for kind in CODECS:
        codec = CODECS[kind]()
        if isinstance(codec, FusedCodec) and (row := _passes(stopwatch, codec, copy_s)):
            rows[kind] = row
            say(f"{kind:22} on the device: " + ", ".join(f"{key} {value:g}" for key, value in row.items()))
    return rows


def _passes(stopwatch: Stopwatch, codec: Codec, copy_s: float) -> Row | None:
    """Encoding with error feedback; and decoding and adding up several updates."""
    values, residual = stopwatch.values, stopwatch.out.zero_()
    assert isinstance(codec, FusedCodec)
    started = codec.start_fused(values, residual, 1.0)
    if started is None:
        return None
    seconds = stopwatch.pass_s(lambda: codec.start_fused(values, residual, 1.0))
    moved_bytes = 12 * len(values) + started[0].numel()
    row = {
        "encode_gb_s": round(stopwatch.gb_s(seconds), 1),
        "encode_ratio": round(copy_s / seconds, 4),
        "encode_moved": round(moved_bytes / (8 * len(values)) * copy_s / seconds, 4),
    }
    payload = codec.encode(values)
    sources = [codec.open(memoryview(payload), len(values)) for _ in range(UPDATES)]
    alike = [source for source in sources if isinstance(source, PackedSource)]
    if alike:
        add_up, out = WeightedSum(alike, [1 / UPDATES] * UPDATES), stopwatch.out
        seconds = stopwatch.pass_s(lambda: add_up(0, len(values), out, out))
        moved_bytes = 4 * len(values) + UPDATES * len(payload)
        row["add_up_gb_s"] = round(UPDATES * stopwatch.gb_s(seconds), 1)
        row["add_up_moved"] = round(moved_bytes / (8 * len(values)) * copy_s / seconds, 4)
    return row


def table(result: dict[str, Any]) -> list[str]:
    """The result for people, a line for each codec."""
    lines = [f"copy {result['copy_gb_s']} GB/s on {result['device']}, {result['threads']} thread(s)"]
    lines.append(f"{'':22} {'bits':>8} {'encode GB/s':>12} {'decode GB/s':>12}   of a copy")
    for name, row in {**result["codecs"], **result["others"]}.items():
        if isinstance(row, str):
            lines.append(f"{name:22} {row}")
            continue
        bits, *speeds, encode, decode = row.values()
        shown = " ".join(f"{speed:12.3f}" for speed in speeds)
        lines.append(f"{name:22} {bits:8.3f} {shown}   {encode:.0%}, {decode:.0%}")
    if isinstance(result["kernels"], dict):
        lines.append("passes on the device, with error feedback")
        for name, row in result["kernels"].items():
            lines.append(f"{name:22} " + ", ".join(f"{key} {value:g}" for key, value in row.items()))
    return lines
