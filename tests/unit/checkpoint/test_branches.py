"""Forks and merges: what they begin with, what they refuse, and what the graph says of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoint.homes import branch, make_home
from shoal.apps.ckpt_moving import prune_states
from shoal.apps.ckpt_reading import Opened, compare, opened
from shoal.base.errors import ShoalError
from shoal.checkpoint.starting import carried, mean_of
from shoal.replica.state import State, initial_state


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("branches"))


@pytest.fixture
def here(home: Path) -> Iterator[Opened]:
    with opened(home, None) as found:
        yield found


def test_a_fork_begins_with_its_parents_state_and_data(here: Opened) -> None:
    root = here.library.dag().vertices[0]
    fork = branch(here, root, settings=("inner.lr=0.5",))
    assert fork.kind == "fork" and fork.parents == (root.id,)
    assert torch.equal(here.library.state_of(fork).params, here.library.state_of(root).params)
    mine, theirs = (here.library.view_of(vertex.run).genesis for vertex in (fork, root))
    assert mine is not None and theirs is not None and mine.manifest == theirs.manifest
    found = compare(here, here.library.dag(), root, fork)
    assert found["recipe"]["inner.lr"] == {"one": 0.01, "other": 0.5}
    assert found["common_ancestor"] == root.id and set(found["tensors"].values()) == {0.0}


def test_a_merge_is_the_weighted_mean_and_has_two_parents(here: Opened) -> None:
    root = here.library.dag().vertices[0]
    other = branch(here, root, settings=("seed=5",))
    merged = branch(here, root, other, weights=(3.0, 1.0))
    assert merged.kind == "merge" and merged.parents == (root.id, other.id)
    assert merged.weights == (0.75, 0.25)
    assert torch.equal(here.library.state_of(merged).params, here.library.state_of(root).params)


def test_means_are_of_named_tensors_wherever_they_lie() -> None:
    from shoal.base.layout import make_layout

    one = make_layout([("a", (2,)), ("b", (1,))])
    other = make_layout([("b", (1,)), ("a", (2,))])
    states = [State(one, torch.tensor([1.0, 2, 3]), {}), State(other, torch.tensor([5.0, 3, 4]), {})]
    assert mean_of(states, (1.0, 1.0)).params.tolist() == [2.0, 3.0, 4.0]
    assert mean_of(states, (3.0, 1.0)).params.tolist() == [1.5, 2.5, 3.5]
    with pytest.raises(ShoalError, match="SH-CKPT-03"):
        mean_of([states[0], State(make_layout([("c", (3,))]), torch.zeros(3), {})], (1.0, 1.0))


def test_momentum_is_carried_into_a_fork_of_the_same_form_only() -> None:
    from shoal.base.layout import make_layout

    layout = make_layout([("a", (2,))])
    state = State(layout, torch.ones(2), {"m": torch.full((2,), 7.0)}, (4,))
    assert carried(state, initial_state(layout, torch.zeros(2), ("m",))) is state
    other = carried(state, initial_state(layout, torch.zeros(2), ("m", "v")))
    assert other.params.tolist() == [1, 1] and other.slots["m"].tolist() == [0, 0] and not other.steps


def test_another_model_is_refused(here: Opened) -> None:
    root = here.library.dag().vertices[0]
    with pytest.raises(ShoalError, match="SH-CKPT-03"):
        branch(here, root, settings=("model.width=32",))


def test_a_state_that_is_gone_is_named(home: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(home, tmp_path / "home")
    with opened(tmp_path / "home", None) as here:
        root = here.library.dag().vertices[0]
        here.room(root.run).discard(root.snapshot)
        with pytest.raises(ShoalError, match="SH-CKPT-02"):
            branch(here, root)


def test_pruning_leaves_what_joiners_need(here: Opened) -> None:
    told = prune_states(here, "", {"last": None, "every": None, "best": None}, dry_run=False)
    assert told["removed"] == [] and told["kept"]
