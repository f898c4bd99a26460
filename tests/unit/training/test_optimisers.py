"""Our optimisers against torch's own, on the same gradients."""

from typing import Any

import pytest
import torch

from shoal.training.flat import FlatModel, flatten, view_of
from shoal.training.models import build_model
from shoal.training.muon import Matrix, orthogonalise
from shoal.training.optimisers import hidden_matrices, make_optimiser
from shoal.training.spec import AdamWSpec, GptSpec, MuonSpec, ResnetSpec, SgdSpec, TransformersSpec

from .conftest import CPU, TINY, Run


def flat_model(run: Run, spec: Any = TINY) -> FlatModel:
    return flatten(build_model(spec, run.manifest, 0), CPU)


def gradient(flat: FlatModel, step: int) -> torch.Tensor:
    return torch.randn(flat.params.shape, generator=torch.Generator().manual_seed(step))


def stepped(flat: FlatModel, inner: Any, steps: int = 5) -> torch.Tensor:
    optimiser = make_optimiser(inner, flat)
    for step in range(steps):
        flat.grads.copy_(gradient(flat, step))
        optimiser.step(0.5)
    return flat.params


def reference(flat: FlatModel, optimiser: torch.optim.Optimizer, steps: int = 5) -> torch.Tensor:
    for step in range(steps):
        flat.grads.copy_(gradient(flat, step))
        optimiser.step()
    return flat.params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_torchs(text_run: Run, momentum: float, nesterov: bool) -> None:
    nesterov = nesterov and momentum > 0
    inner = SgdSpec(kind="sgd", lr=0.2, momentum=momentum, nesterov=nesterov, weight_decay=0.01)
    plain = flat_model(text_run)
    theirs = torch.optim.SGD(
        plain.model.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01
    )
    torch.testing.assert_close(stepped(flat_model(text_run), inner), reference(plain, theirs))


def test_adamw_is_torchs(text_run: Run) -> None:
    plain = flat_model(text_run)
    matrices = [p for p in plain.model.parameters() if p.ndim > 1]
    vectors = [p for p in plain.model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ours = stepped(flat_model(text_run), AdamWSpec(lr=2e-3))
    assert torch.equal(ours, reference(plain, theirs))


def test_muon_is_the_plain_recipe(text_run: Run) -> None:
    """One matrix at a time, as it is written down: momentum, Nesterov, orthogonalise, scale."""
    inner = MuonSpec(kind="muon", lr=0.04, adamw_lr=2e-3)
    plain = flat_model(text_run)
    hidden = hidden_matrices(plain.model, plain.layout.tensors)
    momenta: dict[str, torch.Tensor] = {}
    for step in range(5):
        whole = gradient(plain, step)
        for matrix in hidden:
            name, shape = matrix.tensor.name, matrix.stack
            weights = view_of(plain.params, matrix.tensor).view(shape)
            slopes = view_of(whole, matrix.tensor).view(shape)
            momenta[name] = 0.95 * momenta.get(name, torch.zeros(shape)) + 0.05 * slopes
            direction = orthogonalise(0.05 * slopes + 0.95 * momenta[name], 5)
            weights.mul_(1 - 0.02 * 0.01).sub_(0.02 * matrix.scale * direction)
    ours = flat_model(text_run)
    stepped(ours, inner)
    for matrix in hidden:
        ours_view, plain_view = (view_of(flat.params, matrix.tensor) for flat in (ours, plain))
        torch.testing.assert_close(ours_view, plain_view, rtol=2e-3, atol=2e-4)


def test_muon_leaves_the_rest_to_adamw(text_run: Run) -> None:
    adam = flat_model(text_run)
    stepped(adam, AdamWSpec(lr=2e-3))
    ours = flat_model(text_run)
    stepped(ours, MuonSpec(kind="muon", adamw_lr=2e-3))
    hidden = {matrix.tensor.name for matrix in hidden_matrices(ours.model, ours.layout.tensors)}
    for spec in ours.layout.tensors:
        same = torch.equal(view_of(ours.params, spec), view_of(adam.params, spec))
        assert same == (spec.name not in hidden)


def test_orthogonal_directions_have_about_unit_length() -> None:
    for shape in ((2, 8, 24), (2, 24, 8), (1, 16, 16)):
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        lengths = torch.linalg.svdvals(orthogonalise(noise, 5))
        assert lengths.min() > 0.3 and lengths.max() < 1.3


def test_orthogonalising_together_or_alone_is_the_same() -> None:
    noise = torch.randn((3, 8, 24), generator=torch.Generator().manual_seed(0))
    alone = torch.cat([orthogonalise(matrix.unsqueeze(0), 5) for matrix in noise])
    torch.testing.assert_close(orthogonalise(noise, 5), alone)


def test_a_zero_gradient_gives_a_zero_direction() -> None:
    assert orthogonalise(torch.zeros(1, 4, 8), 5).abs().max() == 0


def hidden_names(run: Run, spec: Any) -> set[str]:
    flat = flat_model(run, spec)
    return {matrix.tensor.name for matrix in hidden_matrices(flat.model, flat.layout.tensors)}


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices_of_a_gpt(text_run: Run, tied: bool) -> None:
    parts = ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")
    expected = {f"blocks.0.{part}" for part in parts}
    assert hidden_names(text_run, GptSpec(layers=1, width=32, heads=2, tied=tied)) == expected


def test_hidden_matrices_of_a_resnet(image_run: Run) -> None:
    names = hidden_names(image_run, ResnetSpec(kind="resnet", channels=8))
    assert "stages.0.0.first.conv.weight" in names and "head.weight" not in names


def test_transposed_storage_is_recognised(text_run: Run) -> None:
    spec = TransformersSpec(
        kind="transformers", architecture="gpt2", config={"n_embd": 16, "n_layer": 1, "n_head": 2}
    )
    flat = flat_model(text_run, spec)
    matrices = {m.tensor.name: m for m in hidden_matrices(flat.model, flat.layout.tensors)}
    up: Matrix = matrices["transformer.h.0.mlp.c_fc.weight"]
    assert up.tensor.shape == (16, 64) and up.scale == 2.0
    assert "transformer.wpe.weight" not in matrices and "transformer.wte.weight" not in matrices
