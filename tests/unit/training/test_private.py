"""Private steps: each sample's gradient is clipped by itself, the sum is noised, and no sample can do more."""

import math

import numpy as np
import pytest
import torch

from shoal.data.dataset import Batch
from shoal.training.models import loss_of
from shoal.training.private import Noising, PerSample
from shoal.training.spec import CnnSpec, GptSpec, MlpSpec, SgdSpec
from shoal.training.trainer import TorchTrainer

from .conftest import Run

PLAIN = SgdSpec(kind="sgd", lr=1.0, batch_size=4, clip=None)


def quiet(clip: float, expected: int) -> Noising:
    return Noising(clip=clip, deviation=0.0, expected=expected, normal=torch.zeros)


def one_by_one(trainer: TorchTrainer, batch: Batch, clip: float) -> torch.Tensor:
    """The sum of clipped gradients, by as many backward passes as there are samples."""
    total = torch.zeros_like(trainer._flat.params)
    for number in range(len(batch.targets)):
        trainer._flat.grads.zero_()
        alone = Batch(batch.inputs[number : number + 1], batch.targets[number : number + 1])
        loss_of(trainer._model, alone).backward()
        total += trainer._flat.grads * min(1.0, clip / float(trainer._flat.grads.norm()))
    return total


@pytest.mark.parametrize("model", [MlpSpec(kind="mlp", width=8, layers=1), CnnSpec(kind="cnn", channels=8)])
def test_the_sum_is_that_of_samples_clipped_one_by_one(image_run: Run, model: MlpSpec | CnnSpec) -> None:
    _check_sum(image_run.trainer(model, PLAIN))


def test_windows_of_text_are_samples_too(text_run: Run) -> None:
    _check_sum(text_run.trainer(GptSpec(layers=1, width=16, heads=2), PLAIN))


def _check_sum(trainer: TorchTrainer) -> None:
    batch = trainer._batch(np.arange(6), "train")
    lengths = [
        float(one_by_one(trainer, Batch(batch[0][n : n + 1], batch[1][n : n + 1]), 1e9).norm())
        for n in range(6)
    ]
    clip = float(np.median(lengths))  # Some are cut, and some are not.
    expected = one_by_one(trainer, batch, clip)
    trainer._flat.grads.zero_()
    PerSample(trainer._flat).add_clipped(batch, clip)
    assert torch.allclose(trainer._flat.grads, expected, rtol=1e-4, atol=1e-6 * clip)


def test_a_step_is_the_mean_over_the_expected_batch_however_many_there_were(image_run: Run) -> None:
    trainer = image_run.trainer(MlpSpec(kind="mlp", width=8, layers=1), PLAIN)
    before = trainer.params().clone()
    total = one_by_one(trainer, trainer._batch(np.arange(3), "train"), 0.5)
    trainer.private_step(np.arange(3), 0, quiet(0.5, 8))
    assert torch.allclose(before - trainer.params(), total / 8, rtol=1e-4, atol=1e-6)


def test_one_sample_more_moves_the_sum_by_the_clip_at_most(image_run: Run) -> None:
    trainer = image_run.trainer(MlpSpec(kind="mlp", width=8, layers=1), PLAIN)
    moved = []
    for indices in (np.arange(5), np.arange(6)):
        trainer.load(image_run.trainer(MlpSpec(kind="mlp", width=8, layers=1), PLAIN).params())
        before = trainer.params().clone()
        trainer.private_step(indices, 0, quiet(1e-3, 1))
        moved.append(before - trainer.params())
    assert float((moved[1] - moved[0]).norm()) <= 1e-3 * (1 + 1e-3)


def test_a_sample_without_a_gradient_counts_for_nothing(image_run: Run) -> None:
    trainer = image_run.trainer(MlpSpec(kind="mlp", width=8, layers=1), PLAIN)
    batch = trainer._batch(np.arange(3), "train")
    by_sample = PerSample(trainer._flat)
    trainer._flat.grads.zero_()
    by_sample.add_clipped(Batch(batch.inputs[:2], batch.targets[:2]), 0.1)
    wanted = trainer._flat.grads.clone()
    batch.inputs[2] = math.nan
    trainer._flat.grads.zero_()
    by_sample.add_clipped(batch, 0.1)
    assert torch.allclose(trainer._flat.grads, wanted)


def test_a_step_without_samples_is_noise_alone_of_the_stated_deviation(image_run: Run) -> None:
    trainer = image_run.trainer(MlpSpec(kind="mlp", width=64, layers=2), PLAIN)
    before = trainer.params().clone()
    torch.manual_seed(0)
    how = Noising(clip=1.0, deviation=3.0, expected=10, normal=torch.randn)
    trainer.private_step(np.arange(0), 0, how)
    moved = before - trainer.params()
    assert float(moved.std()) == pytest.approx(0.3, rel=0.05) and abs(float(moved.mean())) < 0.02


def test_small_slabs_come_to_the_same(image_run: Run) -> None:
    whole = image_run.trainer(MlpSpec(kind="mlp", width=8, layers=1), PLAIN)
    split = image_run.trainer(
        MlpSpec(kind="mlp", width=8, layers=1), PLAIN.model_copy(update={"micro_batch": 2})
    )
    for trainer in (whole, split):
        trainer.private_step(np.arange(7), 0, quiet(0.1, 7))
    assert torch.allclose(whole.params(), split.params(), atol=1e-6)
