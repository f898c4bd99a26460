import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.data.assignment import sample_indices
from shoal.training.models import build_model, loss_of
from shoal.training.spec import (
    AdamWSpec,
    CnnSpec,
    GptSpec,
    MlpSpec,
    MuonSpec,
    ResnetSpec,
    SgdSpec,
    TransformersSpec,
)
from shoal.training.trainer import TorchTrainer, Trainer

from .conftest import TINY, Run

INNERS: list[Any] = [
    SgdSpec(kind="sgd", momentum=0.9, batch_size=4),
    AdamWSpec(batch_size=4, warmup_steps=3),
    MuonSpec(kind="muon", batch_size=4),
]
GPT2 = TransformersSpec(
    kind="transformers",
    architecture="gpt2",
    config={"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.3},
)


def kind_of(value: Any) -> str:
    return str(value.kind)


def train(trainer: Trainer, run: Run, start: int, stop: int) -> list[float]:
    size = trainer.batch_size
    return [
        trainer.step(sample_indices(0, step * size, size, run.dataset.train_items), step).loss
        for step in range(start, stop)
    ]


@pytest.mark.parametrize("inner", INNERS, ids=kind_of)
def test_training_lowers_the_loss(inner: Any, text_run: Run) -> None:
    trainer = text_run.trainer(inner=inner)
    before = trainer.evaluate(4)
    losses = train(trainer, text_run, 0, 25)
    assert trainer.evaluate(4) < before - 0.5 and losses[-1] < losses[0]


@pytest.mark.parametrize(
    "model",
    [MlpSpec(kind="mlp"), CnnSpec(kind="cnn", channels=8), ResnetSpec(kind="resnet", channels=8)],
    ids=kind_of,
)
def test_classifiers_learn(model: Any, image_run: Run) -> None:
    trainer = image_run.trainer(model, AdamWSpec(lr=3e-3, batch_size=16))
    train(trainer, image_run, 0, 40)
    assert trainer.accuracy(100) > 0.9 and trainer.evaluate(100) < 0.6


@pytest.mark.parametrize("inner", INNERS, ids=kind_of)
@pytest.mark.parametrize("model", [TINY, GPT2], ids=kind_of)
def test_a_restored_trainer_goes_on_bit_for_bit(model: Any, inner: Any, text_run: Run) -> None:
    first = text_run.trainer(model, inner)
    train(first, text_run, 0, 3)
    params, state = first.params().clone(), first.local_state()
    train(first, text_run, 3, 6)

    second = text_run.trainer(model, inner)
    torch.rand(7)
    second.load(params)
    second.load_local_state(state)
    assert second.local_state() == state
    train(second, text_run, 3, 6)
    assert torch.equal(first.params(), second.params())
    assert first.local_state() == second.local_state()


@pytest.mark.parametrize("inner", INNERS, ids=kind_of)
def test_what_samples_add_to_a_step_is_told_without_taking_it(inner: Any, text_run: Run) -> None:
    trainer = text_run.trainer(inner=inner)
    train(trainer, text_run, 0, 3)
    params, state = trainer.params().clone(), trainer.local_state()
    samples = np.arange(4)
    losses = trainer.losses(samples)
    pull = trainer.pull(samples, torch.ones(4))
    assert torch.equal(trainer.params(), params) and trainer.local_state() == state
    assert losses.shape == (4,)
    trainer.load(params - 0.1 * pull / pull.norm())
    assert trainer.losses(samples).mean() < losses.mean(), "it goes down"
    trainer.load(params)
    first = trainer.pull(samples, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert torch.allclose(first, trainer.pull(samples[:1], torch.ones(1)), atol=1e-6), "by their weights"


def test_what_a_sample_moves_lasts_by_momentum(text_run: Run) -> None:
    plain = text_run.trainer(inner=SgdSpec(kind="sgd", lr=0.1, batch_size=4))
    heavy = text_run.trainer(inner=SgdSpec(kind="sgd", lr=0.1, batch_size=4, momentum=0.5))
    assert plain.lasting(0) == plain.lasting(100) == 1.0
    assert [heavy.lasting(later) for later in (0, 3, 4, 8)] == [0.5, 0.5, 0.75, 0.875]


def test_dropout_differs_by_step_and_leaves_other_randomness_alone(text_run: Run) -> None:
    trainer = text_run.trainer(GPT2, SgdSpec(kind="sgd", lr=1e-6, batch_size=4))
    before = torch.get_rng_state()
    losses = [trainer.step(np.arange(4), step).loss for step in (0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert abs(losses[0] - losses[1]) > 1e-5
    assert trainer.evaluate(1) == trainer.evaluate(1)


def test_a_step_is_the_plain_loop(text_run: Run) -> None:
    """Against the loop anyone would write, with torch's own optimiser: the same losses and parameters."""
    trainer = text_run.trainer(inner=SgdSpec(kind="sgd", lr=0.5, momentum=0.9, clip=None, batch_size=4))
    model = build_model(TINY, text_run.manifest, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(5):
        indices = np.arange(4 * step, 4 * step + 4)
        optimiser.zero_grad()
        loss = loss_of(model, text_run.dataset.batch(indices))
        loss.backward()
        optimiser.step()
        assert trainer.step(indices, step).loss == pytest.approx(loss.item(), abs=1e-5)
    theirs = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(trainer.params(), theirs)


def test_micro_batches_are_the_same_step(text_run: Run) -> None:
    whole = text_run.trainer(inner=SgdSpec(kind="sgd", batch_size=7))
    parts = text_run.trainer(inner=SgdSpec(kind="sgd", batch_size=7, micro_batch=3))
    results = [trainer.step(np.arange(7), 0) for trainer in (whole, parts)]
    assert results[0].loss == pytest.approx(results[1].loss, abs=1e-5)
    torch.testing.assert_close(whole.params(), parts.params())
    assert (results[0].samples, results[0].tokens) == (7, 7 * 16)


def test_a_split_batch_is_as_many_steps(text_run: Run) -> None:
    """Each part is a step of its own at the batch's place in the schedule; a batch of one cannot be split."""
    spec = {"kind": "sgd", "schedule": "linear", "total_steps": 10, "momentum": 0.9}
    split = text_run.trainer(inner=SgdSpec(**spec, split=3))
    plain = text_run.trainer(inner=SgdSpec(**spec))
    result = split.step(np.arange(7), 4)
    losses = [
        plain.step(part, 4).loss * len(part) for part in (np.arange(3), np.arange(3, 5), np.arange(5, 7))
    ]
    assert torch.equal(split.params(), plain.params())
    assert result.loss == pytest.approx(sum(losses) / 7) and result.samples == 7
    split.step(np.arange(1), 5)
    plain.step(np.arange(1), 5)
    assert torch.equal(split.params(), plain.params())


def test_clipping_bounds_the_step(text_run: Run) -> None:
    trainer = text_run.trainer(inner=SgdSpec(kind="sgd", lr=1.0, clip=0.01))
    before = trainer.params().clone()
    trainer.step(np.arange(8), 0)
    assert torch.linalg.vector_norm(trainer.params() - before).item() == pytest.approx(0.01, rel=1e-3)


def test_the_schedule_follows_the_global_step(text_run: Run) -> None:
    inner = SgdSpec(kind="sgd", lr=1.0, schedule="linear", total_steps=10, floor=0.0)
    moves = []
    for step in (0, 5, 10):
        trainer = text_run.trainer(inner=inner)
        before = trainer.params().clone()
        trainer.step(np.arange(8), step)
        moves.append(torch.linalg.vector_norm(trainer.params() - before).item())
    assert moves[1] == pytest.approx(moves[0] / 2, rel=1e-3) and moves[2] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_changes_nothing(value: float, text_run: Run) -> None:
    trainer = text_run.trainer()
    train(trainer, text_run, 0, 2)
    trainer.params()[-1] = value
    params, state = trainer.params().clone(), trainer.local_state()
    with pytest.raises(ShoalError, match="SH-TRAIN-01"):
        trainer.step(np.arange(4), 2)
    assert trainer.params().numpy().tobytes() == params.numpy().tobytes()
    assert trainer.local_state() == state


def test_bf16_learns_about_as_well(text_run: Run) -> None:
    full, half = (
        text_run.trainer(inner=AdamWSpec(batch_size=4, precision=precision)) for precision in ("fp32", "bf16")
    )
    train(full, text_run, 0, 15)
    train(half, text_run, 0, 15)
    assert half.params().dtype == torch.float32
    assert half.evaluate(4) == pytest.approx(full.evaluate(4), abs=0.1)


def test_load_checks_the_size(text_run: Run) -> None:
    with pytest.raises(ValueError, match="parameters for a model"):
        text_run.trainer().load(torch.zeros(3))


def test_evaluation_covers_what_it_is_asked_for(text_run: Run) -> None:
    trainer = text_run.trainer()
    items = text_run.dataset.validation_items
    with torch.no_grad():
        batch = text_run.dataset.batch(np.arange(items), "validation")
        model = build_model(TINY, text_run.manifest, 1)
        whole = loss_of(model, batch).item()
    assert trainer.evaluate(10_000) == pytest.approx(whole, abs=1e-5)
    assert trainer.evaluate(1) != trainer.evaluate(2)


def test_sampling_is_decided_by_its_seed(text_run: Run) -> None:
    trainer = text_run.trainer()
    train(trainer, text_run, 0, 5)
    params = trainer.params().clone()
    first = trainer.sample("def f", 30, seed=1)
    assert first.startswith("def f") and first == trainer.sample("def f", 30, seed=1)
    assert first != trainer.sample("def f", 30, seed=2)
    assert trainer.sample("", 3, seed=1) and torch.equal(params, trainer.params())


def test_images_cannot_be_sampled_as_text(image_run: Run) -> None:
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        image_run.trainer(MlpSpec(kind="mlp")).sample("x", 3, 1)


def _wrong_states(run: Run) -> list[bytes]:
    good = run.trainer().local_state()
    other = run.trainer(GptSpec(layers=1, width=32, heads=2)).local_state()
    sgd = run.trainer(inner=SgdSpec(kind="sgd")).local_state()
    return [b"", b"\0\0\0\0", b"\x05", good[:-1], good + b"\0", good[:40], b"\xff" * 100, other, sgd]


def test_local_state_that_is_not_ours_is_refused(text_run: Run) -> None:
    trainer = text_run.trainer()
    train(trainer, text_run, 0, 2)
    before = trainer.local_state()
    for bad in _wrong_states(text_run):
        with pytest.raises(ShoalError, match="SH-DISK-02"):
            trainer.load_local_state(bad)
    assert trainer.local_state() == before


def test_fragments_reach_the_layout(text_run: Run) -> None:
    assert len(text_run.trainer(fragments=4).layout.fragments) == 4


PROGRAM = """
import sys, blake3, numpy as np, torch
from pathlib import Path
from shoal.data.dataset import open_dataset
from shoal.data.prepare import prepare
from shoal.data.spec import StdlibSource, TextSource
from shoal.training.spec import GptSpec, MuonSpec
from shoal.training.trainer import TorchTrainer
held = {}
def put(data):
    held[blake3.blake3(data).hexdigest()] = data
    return blake3.blake3(data).hexdigest()
torch.set_num_threads(1)
manifest = prepare(TextSource(source="text", path=sys.argv[1], context=16), put)
dataset = open_dataset(manifest, held.__getitem__)
inner = MuonSpec(kind="muon", batch_size=4)
trainer = TorchTrainer(GptSpec(layers=2, width=32, heads=2), inner, manifest, dataset, 1, torch.device("cpu"))
for step in range(4):
    trainer.step(np.arange(4) + 4 * step, step)
print(blake3.blake3(trainer.params().numpy().tobytes() + trainer.local_state()).hexdigest())
"""


def test_two_processes_train_to_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the same text over and over\n" * 60)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "a.txt")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0].strip()) == 64


def test_it_is_a_trainer(text_run: Run) -> None:
    trainer: Trainer = text_run.trainer()
    assert isinstance(trainer, TorchTrainer)
