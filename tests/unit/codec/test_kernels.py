"""Kernels agree with torch on a CPU, and a CPU never meets them.

Where there is a GPU they run on it; where only Triton is installed, in its interpreter; elsewhere the torch code is all
there is, and the other tests here are about that.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.codec import CHUNK, CODECS
from shoal.codec.base import Source
from shoal.codec.fused import try_fused
from shoal.codec.kernels import usable
from shoal.codec.packed import WeightedSum

HERE = Path(__file__).parent
CPU = torch.device("cpu")
HAS_TRITON = importlib.util.find_spec("triton") is not None
KERNELS = "none" if not HAS_TRITON else "gpu" if torch.cuda.is_available() else "interpreter"


def _python(*arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=290)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def test_kernels_give_the_bits_of_the_torch_code() -> None:
    found = json.loads(_python(str(HERE / "on_gpu.py")))
    assert found["ok"] and found["kernels"] == KERNELS
    assert bool(found["checked"]) is HAS_TRITON


def test_a_cpu_imports_no_kernel() -> None:
    program = (
        "import sys, torch; from shoal.codec import CODECS; from shoal.codec.feedback import encode_with_feedback\n"
        "for kind in CODECS: encode_with_feedback(CODECS[kind](), torch.ones(9000), torch.ones(9000))\n"
        "assert not [name for name in sys.modules if name.startswith(('triton', 'shoal.codec.kernels.'))]"
    )
    _python("-c", program)


def test_values_on_a_cpu_are_encoded_step_by_step() -> None:
    assert not usable(CPU)
    assert try_fused(CODECS["int8"](), torch.ones(10), None, 1.0) is None


def _sources(kinds: list[str], numel: int) -> list[Source]:
    opened = []
    for seed, kind in enumerate(kinds):
        values = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
        opened.append(CODECS[kind]().open(memoryview(CODECS[kind]().encode(values)), numel))
    return [source for source in opened if source is not None]


@pytest.mark.parametrize("kinds", [["two-bit"] * 3, ["int8", "two-bit", "top-k"], ["one-bit"]])
def test_a_weighted_sum_is_that_of_the_sources_in_order(kinds: list[str]) -> None:
    numel, factors = CHUNK - 3, [0.5, 1 / 3, -2.0]
    sources = _sources(kinds, numel)
    out, scratch = torch.full((numel,), float("nan")), torch.empty(numel)
    WeightedSum(sources, factors[: len(kinds)])(0, numel, out, scratch)
    expected = torch.empty(numel)
    sources[0].decode(0, numel, factors[0], expected)
    for source, factor in zip(sources[1:], factors[1 : len(kinds)], strict=True):
        source.decode(0, numel, factor, scratch)
        expected += scratch
    assert torch.equal(out, expected)
