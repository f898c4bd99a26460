"""Every robust rule folds to the same bits, in every process, with any number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.replica.state import state_hash

from . import robust

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_robust.json").read_text())


def test_every_case_has_its_hash() -> None:
    """For a new rule: `python tests/numerics/robust.py 1 > tests/numerics/golden_robust.json`; it only adds lines."""
    assert sorted(GOLDEN) == sorted("+".join(case) for case in robust.CASES)
    # The default is what it says it is. Some rules come to the same thing: a neighbourhood's mean, or two values in
    # the middle of six.
    for codec in robust.CODES:
        assert GOLDEN[f"robust+alone+{codec}"] == GOLDEN[f"multi-krum+even+{codec}"]
        assert GOLDEN[f"median+bucket+{codec}"] == GOLDEN[f"trimmed-mean+bucket+{codec}"]
    assert len(set(GOLDEN.values())) == 49


def _unmixed_first(case: tuple[str, str, str]) -> object:
    """What is mixed before it is aggregated takes long, and the other process below folds all of it anyway."""
    return pytest.param(case, id="+".join(case), marks=[] if case[1] == "alone" else [pytest.mark.long])


@pytest.mark.parametrize("case", [_unmixed_first(case) for case in robust.CASES])
def test_golden(case: tuple[str, str, str]) -> None:
    """If this fails, every run's log in the world replays to another model: bump the format, not the hash."""
    assert state_hash(robust.folded(*case)) == GOLDEN["+".join(case)]


def test_another_process_with_other_threads() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    command = [sys.executable, str(HERE / "robust.py"), "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=280)
    assert json.loads(done.stdout) == GOLDEN
