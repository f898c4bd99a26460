"""Seeded catastrophes by the hundred; each is one number and can be replayed by it.

SHOAL_SEEDS sets how many (500), SHOAL_FIRST_SEED where to begin (1), SHOAL_JOBS in how many processes (2).
"""

import os
import subprocess
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from shoal.runlog.weights import WEIGHTS
from shoal.strategy.merge import MERGE_RULES
from shoal.strategy.seal_rules import SEAL_RULES
from shoal.worlds.simulated.chaos import run_seed
from shoal.worlds.simulated.liars import LIARS
from shoal.worlds.simulated.scenario import BASES, BIG_SIZE, ENDS, IN_PAIRS, KINDS, OUTSIDE, draw_scenario

SEEDS = int(os.environ.get("SHOAL_SEEDS", "500"))
FIRST = int(os.environ.get("SHOAL_FIRST_SEED", "1"))
JOBS = int(os.environ.get("SHOAL_JOBS", "2"))
SHOWN = 5
PRINT_FINGERPRINTS = """
import sys
from shoal.worlds.simulated.chaos import run_seed
for seed in sys.argv[1:]:
    print(run_seed(int(seed)).fingerprint)
"""


def attempt(seed: int) -> tuple[int, str | None]:
    """The seed, and what broke."""
    try:
        run_seed(seed)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return seed, f"{type(error).__name__}: {error} ({where.name} in {os.path.basename(where.filename)})"
    return seed, None


@pytest.mark.timeout(3600)
def test_seeds() -> None:
    # A fresh interpreter for each process, as `shoal sim chaos --jobs` has: fork would carry this one's threads over.
    with ProcessPoolExecutor(JOBS, mp_context=get_context("spawn")) as pool:
        results = pool.map(attempt, range(FIRST, FIRST + SEEDS), chunksize=8)
        failed = {seed: why for seed, why in results if why is not None}
    lines = [f"seed {seed}: {why}\n  replay: shoal sim chaos --seed {seed}" for seed, why in failed.items()]
    more = f"\nand {len(lines) - SHOWN} more: {sorted(failed)[SHOWN:]}" if len(lines) > SHOWN else ""
    assert not failed, f"{len(failed)} of {SEEDS} seeds failed\n" + "\n".join(lines[:SHOWN]) + more


@pytest.mark.parametrize(
    ("seed", "failover"),
    [
        (7134, False),  # A node whose steps outlast the seals.
        (20217, True),  # An answer between coordinators that comes twice.
        (
            20313,
            True,
        ),  # Two receipts are wanted, and the one node that can be reached stores nothing for anybody.
    ],
)
def test_what_once_failed(seed: int, failover: bool) -> None:
    run_seed(seed, failover=failover)


REPEATED = (3, 17, 42, 50, 101, 333)
"""Some of the toy, and one of the torch model (every fiftieth)."""


def _fingerprints(hash_seed: str, threads: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-c", PRINT_FINGERPRINTS, *map(str, REPEATED)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()


def test_the_same_fingerprint_in_every_process() -> None:
    here = [run_seed(seed).fingerprint for seed in REPEATED]
    assert len(set(here)) == len(REPEATED)
    assert here == [run_seed(seed).fingerprint for seed in REPEATED], "a second time in this process"
    for hash_seed, threads in (("0", "1"), ("31337", "2")):
        assert _fingerprints(hash_seed, threads) == here, f"PYTHONHASHSEED={hash_seed}, {threads} threads"


def test_simulated_trouble_is_not_told_on_the_terminal() -> None:
    quiet = "from shoal.worlds.simulated.chaos import run_seed; run_seed(3, failover=True)"  # Nobody leads for long.
    command = [sys.executable, "-W", "ignore", "-c", quiet]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""


def test_seeds_do_make_trouble() -> None:
    """A chaos in which nothing happens proves nothing."""
    outcomes = [run_seed(seed) for seed in range(1, 25)]
    assert sum(outcome.crashes for outcome in outcomes) >= 20
    assert all(outcome.rounds >= 2 or draw_scenario(outcome.seed).ends for outcome in outcomes)
    assert all(outcome.virtual_s > 3 for outcome in outcomes)


def test_seeds_draw_everything_there_is() -> None:
    drawn = [draw_scenario(seed) for seed in range(1, 501)]
    assert {kind for scenario in drawn for kind in scenario.troubles} == set(KINDS)
    assert {scenario.ends for scenario in drawn} == {"", *ENDS}
    assert {len(scenario.nodes) for scenario in drawn} == set(range(1, 8))
    assert {kind for scenario in drawn for _, kind in scenario.liars} == set(LIARS)
    assert {scenario.recipe.storage.receipts for scenario in drawn} == {1, 2}
    assert any(scenario.size == BIG_SIZE for scenario in drawn)
    strategies = [scenario.recipe.strategy for scenario in drawn]
    assert {strategy.preset for strategy in strategies} == {*BASES, *OUTSIDE, IN_PAIRS}
    assert {strategy.seal.kind for strategy in strategies} == set(SEAL_RULES)
    assert {strategy.merge.kind for strategy in strategies} == set(MERGE_RULES)
    assert {strategy.weights.kind for strategy in strategies} == set(WEIGHTS)
    assert {strategy.schedule.order for strategy in strategies} == {"all", "rotate"}
    assert any(strategy.schedule.seconds for strategy in strategies)
    assert any(strategy.schedule.steps_last for strategy in strategies)
    for scenario in drawn:
        assert 3 * len(scenario.liars) < len(scenario.nodes)
