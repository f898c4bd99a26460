"""A digest is the same bits in every process, with any number of threads, whatever its codec."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.replica.state import state_hash

from . import digests

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_digests.json").read_text())


def test_every_codec_has_its_hash() -> None:
    """For a new codec: `python tests/numerics/digests.py 1 > tests/numerics/golden_digests.json`; it may only add
    lines."""
    assert sorted(GOLDEN) == sorted("+".join(case) for case in digests.CASES)
    assert len(set(GOLDEN.values())) == len(GOLDEN)


@pytest.mark.parametrize("case", digests.CASES, ids="+".join)
def test_golden(case: tuple[str, str]) -> None:
    """If this fails, every run's log in the world replays to another model: bump the format, not the hash."""
    assert state_hash(digests.folded(*case)) == GOLDEN["+".join(case)]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_other_processes_with_other_threads(threads: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, str(HERE / "digests.py"), threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
    assert json.loads(done.stdout) == GOLDEN
