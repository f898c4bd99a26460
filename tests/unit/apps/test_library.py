"""An existing PyTorch loop in a run: the example, the handover, and optimisers without pickle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.apps.library.hosting import Coordinating
from shoal.apps.library.loop import Handover, LoopTrainer, Report
from shoal.apps.library.optimizers import encode_optimizer, restore_optimizer
from shoal.apps.logs_checking import verified_view
from shoal.apps.logs_reading import find_log
from shoal.base.errors import ShoalError
from shoal.replica.state import initial_state, state_hash
from shoal.training.flat import layout_of
from shoal.worlds.real.locks import held

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_loop.py"
RECIPE = {
    "name": "own",
    "budget": {"rounds": 3},
    "membership": {"heartbeat_s": 0.2, "lease_s": 3},
    "strategy": {"preset": "local-sgd", "schedule": {"steps": 4}},
}


def _model() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 1)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = (model(torch.ones(4, 3)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_the_example_runs_and_learns(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "validation loss:" in result.stdout
    assert not list(tmp_path.glob("shoal-*")), "it cleans up"


def test_a_loop_trains_to_the_end_and_has_the_runs_model(tmp_path: Path) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with shoal.coordinate(_model(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path / "o") as run:
        with shoal.join(run.ticket, model, optimizer, evaluate=lambda: 0.5, home=tmp_path / "n") as joined:
            taken = []
            for indices in joined:
                taken.append(indices)
                joined.report(_step(model, optimizer), tokens=7)
            assert joined.ended == "3 rounds done"
            assert list(joined) == [], "another epoch ends at once, and does not wait for ever"
            assert joined.now is not None and joined.now.validation == 0.5
        assert run.wait(30)
    assert len(taken) == 12
    final = verified_view(find_log(tmp_path / "o", None, "", node=False)).best_start()
    assert state_hash(initial_state(layout_of(model), _flat(model), ())) == final.state
    samples = np.concatenate(taken)
    assert len(np.unique(samples)) == len(samples) == 48, "no sample twice in an epoch"


def test_a_loop_may_leave_at_any_step(tmp_path: Path) -> None:
    recipe = {**RECIPE, "budget": {"rounds": 100_000}}
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    with shoal.coordinate(_model(), items=64, batch_size=4, recipe=recipe, home=tmp_path / "o") as run:
        with shoal.join(run.ticket, model, optimizer, evaluate=lambda: 0.5, home=tmp_path / "n") as joined:
            for number, _ in enumerate(joined):
                joined.report(_step(model, optimizer))
                if number == 9:
                    break
            with held(tmp_path / "o" / "coordinator") as mine:
                assert not mine, "nobody exchanges the store under it"
        assert joined.ended == "the program left"


def test_one_coordinator_works_in_a_home_at_a_time(tmp_path: Path) -> None:
    def another() -> Coordinating:
        return shoal.coordinate(_model(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path)

    with another() as first, pytest.raises(ShoalError, match="SH-SERVE-03"), another():
        pass
    with another() as second:
        assert second.run != first.run


def test_failures_reach_the_loop(tmp_path: Path) -> None:
    other = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with shoal.coordinate(_model(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path / "o") as run:
        with (
            pytest.raises(ShoalError, match="SH-MODEL-01"),
            shoal.join(run.ticket, other, optimizer, evaluate=lambda: 0.5, home=tmp_path / "n") as joined,
        ):
            list(joined)
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with (
            pytest.raises(ShoalError, match="SH-TRAIN-01"),
            shoal.join(run.ticket, model, optimizer, evaluate=lambda: 0.5, home=tmp_path / "m") as joined,
        ):
            for _ in joined:
                _step(model, optimizer)  # and no report


def test_a_wrong_recipe_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="SH-RECIPE"):
        shoal.coordinate(_model(), items=64, batch_size=4, recipe={"budget": {}}, home=tmp_path)


def test_numbers_of_numpy_are_numbers_and_nothing_else_passes_for_one(tmp_path: Path) -> None:
    recipe = {
        **RECIPE,
        "budget": {"rounds": np.int64(3)},
        "strategy": {"outer": {"kind": "sgd", "lr": np.float32(0.5)}},
    }
    shoal.coordinate(_model(), items=np.int64(64), batch_size=np.int32(4), recipe=recipe, home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*name: found x;"):
        shoal.coordinate(
            _model(), items=64, batch_size=4, recipe={**RECIPE, "name": Path("x")}, home=tmp_path
        )


def test_what_no_loop_could_train_is_refused_at_once(tmp_path: Path) -> None:
    empty, optimizer = nn.ReLU(), torch.optim.SGD(_model().parameters(), lr=0.1)
    with pytest.raises(ShoalError, match=r"SH-MODEL-01.*no parameters"):
        shoal.coordinate(empty, items=64, batch_size=4, recipe=RECIPE, home=tmp_path)
    for model, words in ((empty, "no parameters"), (_model(), "none of the model's parameters")):
        with pytest.raises(ShoalError, match=f"SH-MODEL-01.*{words}"):
            shoal.join("shoal1-x", model, optimizer, evaluate=lambda: 0.5, home=tmp_path)


def test_parameters_become_views_and_the_optimiser_still_moves_them() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = LoopTrainer(model, optimizer, lambda: 0.0, Handover(), fragments=1)
    before = trainer.params().clone()
    _step(model, optimizer)
    assert not torch.equal(trainer.params(), before)
    trainer.load(before)
    assert torch.equal(_flat(model), before)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop", "Adagrad"])
def test_an_optimisers_state_survives_as_bytes(kind: str) -> None:
    models = [_model(), _model()]
    one, two = (getattr(torch.optim, kind)(model.parameters(), lr=0.05) for model in models)
    for _ in range(3):
        _step(models[0], one)
    models[1].load_state_dict(models[0].state_dict())
    data = encode_optimizer(one)
    restore_optimizer(two, data)
    assert encode_optimizer(two) == data
    assert _step(models[0], one) == _step(models[1], two)
    assert torch.equal(models[0].weight, models[1].weight)
    for bad in (b"", data[:-1], data[: len(data) // 2], b"\xff" * 40):
        with pytest.raises(ShoalError, match="SH-DISK-02"):
            restore_optimizer(two, bad)
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        restore_optimizer(torch.optim.Adamax(models[1].parameters()), data)


def test_parameters_that_a_loop_gives_other_storage_are_still_the_runs() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handover = Handover()
    trainer = LoopTrainer(model, optimizer, lambda: 0.0, handover, fragments=1)
    for parameter in model.parameters():
        parameter.data = parameter.data - 1.0  # as many optimisers of one's own do
    moved = _flat(model).clone()
    handover.report(Report(1.0))
    trainer.step(np.arange(4), 1)
    assert torch.equal(trainer.params(), moved)
    trainer.load(moved + 1)
    assert torch.equal(_flat(model), moved + 1)
    model.double()
    handover.report(Report(1.0))
    with pytest.raises(ShoalError, match=r"SH-MODEL-01.*weight has become another"):
        trainer.step(np.arange(4), 2)


def test_what_was_in_evaluation_mode_stays_so() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fails() -> float:
        assert not model[0].training
        raise ZeroDivisionError

    trainer = LoopTrainer(model, optimizer, fails, Handover(), fragments=1)
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate(1)
    assert model.training and model[0].training and not model[1].training


class _Counting(torch.optim.Optimizer):
    """One tensor for all parameters, and one value beside them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})
        count = torch.zeros(1)
        for parameter in model.parameters():
            self.state[parameter]["count"] = count
        self.state["all"]["seen"] = 3  # type: ignore[index]


def test_an_optimiser_may_share_a_tensor_and_keep_what_belongs_to_no_parameter() -> None:
    one, two = _Counting(_model()), _Counting(_model())
    two.state["all"]["seen"] = 0  # type: ignore[index]
    restore_optimizer(two, encode_optimizer(one))
    assert two.state["all"]["seen"] == 3  # type: ignore[index]


def test_an_error_in_the_loop_leaves_the_home_free_for_joining_again(tmp_path: Path) -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shoal.coordinate(_model(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path / "o") as run:
        with (
            pytest.raises(ZeroDivisionError),
            shoal.join(run.ticket, model, optimizer, evaluate=lambda: 0.5, home=tmp_path / "n") as joined,
        ):
            for _ in joined:
                raise ZeroDivisionError
        with pytest.raises(ShoalError, match=r"SH-RUN-01.*joined before"), joined:
            pass
        with shoal.join(run.ticket, model, optimizer, evaluate=lambda: 0.5, home=tmp_path / "n") as joined:
            for _ in joined:
                joined.report(_step(model, optimizer))
        assert joined.ended == "3 rounds done"
    with pytest.raises(ShoalError, match=r"SH-RUN-01.*coordinated before"), run:
        pass


def test_things_in_the_wrong_order_are_refused_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    run = shoal.coordinate(_model(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path)
    with pytest.raises(ShoalError, match=r"SH-RUN-01.*nobody coordinates"):
        run.wait()
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*a dict of sections"):
        shoal.coordinate(_model(), items=64, batch_size=4, recipe="mine.yaml", home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*recipe.inner"):
        mine = {**RECIPE, "inner": {"kind": "sgd"}}
        shoal.coordinate(_model(), items=64, batch_size=4, recipe=mine, home=tmp_path)
    with pytest.raises(ShoalError, match=r"SH-MODEL-01.*float16"):
        shoal.coordinate(_model().half(), items=64, batch_size=4, recipe=RECIPE, home=tmp_path)
