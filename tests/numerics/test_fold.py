"""The fold gives the same bits in every process, with every number of threads, and as plain arithmetic does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.replica.fold import SealedBlob, fold
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.replica.update import encode_update

from . import folding

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_fold.json").read_text())


@pytest.mark.parametrize("case", folding.CASES, ids=folding.name_of)
def test_golden(case: tuple[str, str, int]) -> None:
    """If this fails, every run's log in the world replays to another model: bump the format, not the hash."""
    assert state_hash(folding.folded(case)) == GOLDEN[folding.name_of(case)]


@pytest.mark.parametrize("case", folding.CASES, ids=folding.name_of)
def test_against_plain_arithmetic(case: tuple[str, str, int]) -> None:
    state = folding.folded(case)
    params, momentum = folding.reference(case)
    assert state.params.numpy().tobytes() == params.tobytes()
    if "momentum" in state.slots:
        assert state.slots["momentum"].numpy().tobytes() == momentum.tobytes()


@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_other_processes_with_other_threads(threads: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [sys.executable, str(HERE / "folding.py"), threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == GOLDEN


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_of_this_process(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        case = ("int8", "nesterov", 3)
        assert state_hash(folding.folded(case)) == GOLDEN[folding.name_of(case)]
    finally:
        torch.set_num_threads(before)


def _one_round(codec: str, blobs: list[SealedBlob]) -> tuple[bytes, tuple[int, ...]]:
    rules, layout = folding.rules_of(codec, "nesterov"), folding.layout_of(3)
    first = torch.from_numpy(folding.values_of(0, layout.numel))
    state = initial_state(layout, first, rules.outer.slots)
    done = fold(state, tuple(range(len(layout.fragments))), blobs, rules)
    return encode_state(done.state), done.void


def _void_ones(codec: str) -> dict[str, bytes]:
    rules, layout = folding.rules_of(codec, "nesterov"), folding.layout_of(3)
    good = folding.updates_of(rules, layout, 0)[0].blob
    other = folding.layout_of(1)
    whole = torch.from_numpy(folding.values_of(3, other.numel))
    bad_float = b"\xff\xff\xff\xff"
    first = good.index(b"\n") + 5 + int.from_bytes(good[15:19], "little") - 1
    return {
        "empty": b"",
        "noise": b"noise" * 99,
        "cut": good[:-1],
        "longer": good + b"\0",
        "not a number": good[: first + 1] + bad_float + good[first + 5 :],
        "wrong shape": encode_update([(0, rules.codec.encode(whole))]),
        "wrong fragments": encode_update([(2, b""), (1, b""), (0, b"")]),
    }


@pytest.mark.parametrize("codec", folding.CODECS)
@pytest.mark.parametrize("what", list(_void_ones("none")))
def test_void_updates_leave_the_bits_of_leaving_them_out(codec: str, what: str) -> None:
    good = folding.updates_of(folding.rules_of(codec, "nesterov"), folding.layout_of(3), 0)
    expected, none_void = _one_round(codec, good)
    assert none_void == ()
    for at in (0, 2, len(good)):
        mixed = [*good[:at], SealedBlob(_void_ones(codec)[what], 10**6), *good[at:]]
        assert _one_round(codec, mixed) == (expected, (at,))


@pytest.mark.parametrize("codec", folding.CODECS)
def test_a_round_of_void_updates_changes_nothing(codec: str) -> None:
    blobs = [SealedBlob(blob, 1) for blob in _void_ones(codec).values()]
    state, void = _one_round(codec, blobs)
    assert void == tuple(range(len(blobs))) and state == _one_round(codec, [])[0]


def test_the_state_given_is_not_changed() -> None:
    rules, layout = folding.rules_of("int8", "nesterov"), folding.layout_of(1)
    first = torch.from_numpy(folding.values_of(0, layout.numel))
    state = initial_state(layout, first, rules.outer.slots)
    before = encode_state(state)
    fold(state, (0,), folding.updates_of(rules, layout, 0), rules)
    assert encode_state(state) == before


def test_fragments_that_are_not_named_stay() -> None:
    rules, layout = folding.rules_of("none", "sgd"), folding.layout_of(3)
    first = torch.from_numpy(folding.values_of(0, layout.numel))
    state = initial_state(layout, first, rules.outer.slots)
    part = layout.fragments[1]
    blob = encode_update([(1, rules.codec.encode(torch.ones(part.numel)))])
    after = fold(state, (1,), [SealedBlob(blob, 1)], rules).state
    changed = torch.nonzero(after.params != state.params).flatten()
    assert int(changed.min()) >= part.start and int(changed.max()) < part.stop
