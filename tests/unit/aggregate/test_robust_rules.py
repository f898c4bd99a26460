"""Robust rules against `byzfl` and plain numpy, on random updates; what weights do; what too few updates do."""

import importlib

import numpy as np
import pytest
import torch

from shoal.aggregate import AGGREGATORS, Gathering, Sealed
from shoal.aggregate.tolerance import MAJORITY, Guard
from shoal.apps.bench.outside_rules import byzfl_rules
from shoal.codec import CODECS
from shoal.codec.base import CHUNK, decode_whole

from .gatherings import Plain, combined, gathered

ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "bulyan", "geometric-median", "centred-clipping")
STAGES = ({}, {"nnm": True}, {"bucket": 2}, {"even": True, "distinct": True, "nnm": True})


def updates(count: int, size: int = 500, seed: int = 0, liars: int = 0) -> list[torch.Tensor]:
    """Around a common direction; the last ones far from it."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(size, generator=random)
    rows = [common + torch.randn(size, generator=random) for _ in range(count)]
    return rows[: count - liars] + [row * -30 - 7 for row in rows[count - liars :]]


def byzfl() -> object:
    assert byzfl_rules(1), "the tests need byzfl: pip install --no-deps byzfl"
    return importlib.import_module("byzfl.aggregators")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "f"), [(5, 1), (9, 3), (10, 3), (16, 4)])
@pytest.mark.parametrize("kind", ["mean", "median", "trimmed-mean", "krum", "multi-krum"])
def test_rules_are_those_of_byzfl(kind: str, count: int, f: int, seed: int) -> None:
    rows = updates(count, seed=seed, liars=f)
    parameters = {} if kind == "mean" else {"f": f}
    found = combined(kind, gathered(rows), **parameters)
    assert torch.allclose(found, byzfl_rules(f)[kind](torch.stack(rows)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["median", "trimmed-mean", "krum", "multi-krum"])
def test_nearest_neighbour_mixing_is_that_of_byzfl(kind: str, seed: int) -> None:
    rows = updates(11, seed=seed, liars=3)
    mixed = byzfl().NNM(f=3)(torch.stack(rows))
    found = combined(kind, gathered(rows), f=3, nnm=True)
    assert torch.allclose(found, byzfl_rules(3)[kind](mixed), rtol=1e-4, atol=1e-5)


def test_the_geometric_median_is_where_byzfl_ends_up() -> None:
    rows = updates(11, liars=3)
    theirs = byzfl().GeometricMedian(nu=1e-6, T=300)(torch.stack(rows))
    found = combined("geometric-median", gathered(rows), iterations=60)
    assert torch.allclose(found, theirs, rtol=1e-3, atol=1e-3)


def test_centred_clipping_from_zero_is_that_of_byzfl_with_our_radius() -> None:
    rows = updates(9, liars=2)
    radius = sorted(float(row.double().norm()) for row in rows)[4]
    theirs = byzfl().CenteredClipping(L=1, tau=radius)(torch.stack(rows))
    found = combined("centred-clipping", gathered(rows), iterations=1)
    assert torch.allclose(found, theirs, rtol=1e-4, atol=1e-5)


def test_centred_clipping_begins_on_the_momentum() -> None:
    rows = updates(9, liars=4)
    towards = torch.stack(rows[:5]).mean(dim=0)
    cold = combined("centred-clipping", gathered(rows), iterations=1)
    warm = combined("centred-clipping", gathered(rows, momentum=towards * 10), iterations=1)
    assert (warm - towards).norm() < 0.8 * (cold - towards).norm()


def bulyan_by_numpy(rows: np.ndarray, f: int) -> np.ndarray:
    left, chosen = list(range(len(rows))), []
    while len(chosen) < len(rows) - 2 * f:
        scores = []
        for i in left:
            far = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in left)
            scores.append(sum(far[: len(left) - f]))
        chosen.append(left.pop(int(np.argmin(scores))))
    picked = rows[chosen]
    middle = np.median(picked, axis=0)
    order = np.argsort(np.abs(picked - middle), axis=0, kind="stable")[: len(chosen) - 2 * f]
    return np.take_along_axis(picked, order, axis=0).mean(axis=0)


@pytest.mark.parametrize(("count", "f"), [(7, 1), (11, 2), (15, 3), (16, 3), (6, 0)])
def test_bulyan_is_what_plain_numpy_computes(count: int, f: int) -> None:
    rows = updates(count, liars=f)
    expected = bulyan_by_numpy(torch.stack(rows).double().numpy(), f)
    assert np.allclose(combined("bulyan", gathered(rows), f=f), expected, rtol=1e-4, atol=1e-5)


# --- what a minority can do --------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [1e30, -3e38, 50.0, 0.0])
@pytest.mark.parametrize("stage", STAGES, ids=str)
@pytest.mark.parametrize("kind", [*ROBUST, "robust"])
def test_a_minority_moves_the_aggregate_no_further_than_the_honest_ones_spread(
    kind: str, stage: dict[str, bool], lie: float
) -> None:
    if kind == "robust" and stage:
        return
    rows, liars = updates(15, size=300), 1 if stage.get("bucket") else 3  # A liar spoils a bucket.
    honest = torch.stack(rows[: 15 - liars])
    centre, spread = honest.mean(dim=0), float(torch.cdist(honest, honest).max())
    rows[15 - liars :] = [torch.full((300,), lie) for _ in range(liars)]
    found = combined(kind, gathered(rows), f=liars, **stage)
    assert float((found - centre).norm()) < spread


def test_the_mean_is_moved_by_one() -> None:
    rows = updates(15, size=300)
    rows[14] = torch.full((300,), 1e30)
    assert float(combined("mean", gathered(rows)).norm()) > 1e20


# --- weights -----------------------------------------------------------------------------------------------


def test_where_nobody_lies_the_default_is_the_weighted_mean_of_evened_updates() -> None:
    rows = updates(6)
    weights = [1, 2, 3, 4, 5, 6]
    length = sorted(float(row.norm()) for row in rows)[2]
    evened = [row * (length / row.norm()) for row in rows]
    expected = sum(row * (weight / 21) for row, weight in zip(evened, weights, strict=True))
    assert torch.allclose(combined("robust", gathered(rows, weights), f=0), expected, rtol=1e-4, atol=1e-5)


def test_multi_krum_weighs_those_whom_it_chose() -> None:
    rows = updates(7, liars=2)
    weights = [1, 2, 3, 4, 5, 1000, 1000]
    chosen = sum(row * (weight / 15) for row, weight in zip(rows[:5], weights[:5], strict=True))
    assert torch.allclose(combined("multi-krum", gathered(rows, weights), f=2), chosen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["median", "trimmed-mean", "krum", "bulyan"])
def test_votes_do_not_weigh(kind: str) -> None:
    rows = updates(11, liars=2)
    there = combined(kind, gathered(rows, [1] * 11), f=2)
    assert torch.equal(
        combined(kind, gathered(rows, [5] * 9 + [10**6] * 2, whole=5 * 9 + 2 * 10**6), f=2), there
    )


# --- too few -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [Guard(2, 3), Guard(4, 3), MAJORITY], ids=str)
def test_a_guard_allows_as_many_liars_as_it_needs_updates_for(guard: Guard) -> None:
    for updates in range(guard.least(0), 60):
        assert guard.least(guard.most(updates)) <= updates < guard.least(guard.most(updates) + 1)
    assert guard.most(guard.least(0) - 1) == 0


@pytest.mark.parametrize(
    ("kind", "count", "bears"), [("krum", 6, 1), ("bulyan", 8, 1), ("trimmed-mean", 6, 2)]
)
def test_a_round_with_fewer_updates_than_the_guard_needs_bears_fewer_liars(
    kind: str, count: int, bears: int
) -> None:
    rows = updates(count, liars=1)
    assert torch.equal(combined(kind, gathered(rows), f=5), combined(kind, gathered(rows), f=bears))
    assert not torch.equal(
        combined(kind, gathered(rows), f=bears), combined(kind, gathered(rows), f=bears - 1)
    )


@pytest.mark.parametrize("kind", ["krum", "multi-krum", "bulyan", "robust"])
def test_two_are_too_few_for_any_vote_and_their_mean_is_taken(kind: str) -> None:
    rows = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])]
    assert torch.allclose(combined(kind, gathered(rows, [1, 3])), torch.tensor([0.75, 4.75]))


@pytest.mark.parametrize("kind", [*ROBUST, "robust"])
def test_one_alone_is_itself(kind: str) -> None:
    assert torch.allclose(combined(kind, gathered([[3.0, -4.0]])), torch.tensor([3.0, -4.0]))


@pytest.mark.parametrize("kind", [*ROBUST, "robust"])
def test_nothing_at_all_is_nothing(kind: str) -> None:
    assert combined(kind, gathered([[0.0, 0.0]] * 9)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("f", [-1, 0.5, 0.99, 1.5, 1e9])
def test_a_senseless_f_is_refused(f: float) -> None:
    with pytest.raises(ValueError, match="f must be"):
        AGGREGATORS["krum"](f=f)


@pytest.mark.parametrize("bucket", [0, -2, 10**6])
def test_a_senseless_bucket_is_refused(bucket: int) -> None:
    with pytest.raises(ValueError, match="bucket must be"):
        AGGREGATORS["median"](bucket=bucket)


# --- compressed and sparse ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["int8", "two-bit", "chunked-top-k", "ternary", "top-k"])
@pytest.mark.parametrize("kind", [*ROBUST, "robust"])
def test_coded_updates_are_aggregated_as_what_they_decode_to(kind: str, codec: str) -> None:
    size, coder = CHUNK + 777, CODECS[codec]()
    sources = []
    for row in updates(9, size=size, liars=2):
        opened = coder.open(memoryview(coder.encode(row)), size)
        assert opened is not None
        sources.append(opened)
    dense = [Plain(decode_whole(source, size)) for source in sources]
    found = []
    for every in (sources, dense):
        sealed = [Sealed(source, 3) for source in every]
        found.append(combined(kind, Gathering(updates=sealed, whole=30, numel=size, slots={})))
    # Int8 multiplies its scales by a factor, not its values: the last bit may differ.
    assert torch.equal(*found) if codec != "int8" else torch.allclose(*found, rtol=1e-5, atol=1e-5)
