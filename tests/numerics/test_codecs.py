"""Codecs give the same bytes, and the same values from them, on every machine, device and number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import coding

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_codecs.json").read_text())


def test_golden() -> None:
    """If values differ, every run's log in the world replays to another model: bump the format, not the hash. If only
    bytes differ, encoding has changed, which old logs do not notice."""
    assert coding.hashes() == GOLDEN


@pytest.mark.parametrize("threads", ["1", "3"])
def test_other_processes_with_other_threads(threads: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, str(HERE / "coding.py"), threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == GOLDEN


@pytest.mark.parametrize("device", ["cuda"] if torch.cuda.is_available() else ["cpu"])
def test_on_the_best_device(device: str) -> None:
    assert coding.hashes(device) == GOLDEN
