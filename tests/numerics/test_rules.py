"""Every aggregator folds with every outer optimiser to the same bits, in every process, with any number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.replica.state import state_hash

from . import rules

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_rules.json").read_text())


def test_every_pair_has_its_hash() -> None:
    """For a new rule: `python tests/numerics/rules.py 1 > tests/numerics/golden_rules.json`; it may only add lines."""
    assert sorted(GOLDEN) == sorted("+".join(case) for case in rules.CASES)
    # Without momentum to compare with, heloco is the mean, and signs do not know a mean from a part of it; nothing
    # else is the same as anything else.
    assert GOLDEN["heloco+sgd"] == GOLDEN["mean+sgd"]
    assert GOLDEN["heloco+sign"] == GOLDEN["mean+sign"] == GOLDEN["sender-mean+sign"]
    assert len(set(GOLDEN.values())) == len(GOLDEN) - 3


@pytest.mark.parametrize("case", rules.CASES, ids="+".join)
def test_golden(case: tuple[str, str]) -> None:
    """If this fails, every run's log in the world replays to another model: bump the format, not the hash."""
    assert state_hash(rules.folded(*case)) == GOLDEN["+".join(case)]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_other_processes_with_other_threads(threads: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, str(HERE / "rules.py"), threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
    assert json.loads(done.stdout) == GOLDEN
