"""R workers as one stacked model: every product of a layer is one batched product over the workers.

In flow one batch of samples for each worker; out flow their parameters, as rows of one matrix. Invariant: each
worker computes what a `TorchTrainer` of its own would, up to the rounding of the products; only the hardware is
shared. One GPU trains eight workers about five times as fast so as one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout, TensorSpec
from shoal.data.assignment import Indices
from shoal.data.dataset import Dataset
from shoal.data.manifest import Manifest
from shoal.training.device import make_repeatable
from shoal.training.flat import FlatModel, flatten, view_of
from shoal.training.gpt import NORM_EPS, Gpt, rotate
from shoal.training.models import build_model
from shoal.training.muon import Matrix, MuonPart
from shoal.training.optimisers import AdamPart, Sgd, hidden_matrices
from shoal.training.schedule import rate_factor
from shoal.training.spec import AdamWSpec, GptSpec, MuonSpec, SgdSpec
from shoal.training.trainer import parts_of

Stacked = dict[str, torch.Tensor]
"""The model's tensors by name, with the workers as first axis (W)."""


class StackedFleet:
    def __init__(
        self,
        model_spec: GptSpec,
        inner_spec: SgdSpec | AdamWSpec | MuonSpec,
        manifest: Manifest,
        dataset: Dataset,
        seed: int,
        device: torch.device,
        *,
        workers: int,
        fragments: int = 1,
    ) -> None:
        make_repeatable(device)
        self._inner, self._dataset, self._device = inner_spec, dataset, device
        gpt = build_model(model_spec, manifest, seed)
        assert isinstance(gpt, Gpt)
        one = flatten(gpt, device, fragments)
        self.layout: Layout = one.layout
        self._gpt: Gpt = gpt
        self._heads = model_spec.heads
        self.params = one.params.repeat(workers, 1)
        """[W, P], changed in place."""
        self._grads = torch.zeros_like(self.params)
        self._leaves = _leaves(self.params, self._grads, self.layout)
        self._optimiser = _stacked_optimiser(inner_spec, one, self.params, self._grads)
        self._losses = torch.compile(self._forward) if device.type == "cuda" else self._forward

    @property
    def workers(self) -> int:
        return self.params.shape[0]

    def step(self, indices: Sequence[Indices], step_number: int) -> torch.Tensor:
        """One step of every worker on its own samples; their losses. Raises SH-TRAIN-01."""
        split = [parts_of(part, self._inner.split) for part in indices]
        return torch.stack([self._step(parts, step_number) for parts in zip(*split, strict=True)]).mean(dim=0)

    def _step(self, indices: Sequence[Indices], step_number: int) -> torch.Tensor:
        """One step of every worker's optimiser."""
        batches = [self._dataset.batch(part, "train") for part in indices]
        inputs = torch.stack([batch.inputs for batch in batches]).to(self._device)
        targets = torch.stack([batch.targets for batch in batches]).to(self._device)
        self._grads.zero_()
        losses: torch.Tensor = self._losses(self._leaves, inputs, targets)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        norms = torch.linalg.vector_norm(self._grads, dim=1)
        if self._inner.clip is not None:
            # A gradient that is not finite stays so, and is found when the losses are read.
            self._grads.mul_((self._inner.clip / norms).clamp(max=1.0)[:, None])
        self._optimiser.step(rate_factor(self._inner, step_number))
        return losses.detach()

    def evaluate(self, params: torch.Tensor, max_batches: int, batch_size: int) -> float:
        """The mean validation loss of these parameters, on the same samples as `TorchTrainer.evaluate`."""
        names = {
            tensor.name: view_of(params.to(self._device), tensor)[None] for tensor in self.layout.tensors
        }
        samples = min(self._dataset.validation_items, max_batches * batch_size)
        total = 0.0
        with torch.no_grad():
            for first in range(0, samples, batch_size):
                indices = torch.arange(first, min(first + batch_size, samples)).numpy()
                batch = self._dataset.batch(indices, "validation")
                inputs, targets = batch.inputs.to(self._device), batch.targets.to(self._device)
                total += self._forward(names, inputs[None], targets[None]).item() * len(indices)
        return total / samples

    def _forward(self, leaves: Stacked, ids_WBT: torch.Tensor, targets_WBT: torch.Tensor) -> torch.Tensor:
        """Each worker's mean loss."""
        narrow = torch.bfloat16 if self._inner.precision == "bf16" else torch.float32
        workers, batch, time = ids_WBT.shape
        heads = self._heads
        cos_TK, sin_TK = self._gpt.cos[:time], self._gpt.sin[:time]
        table = leaves["embedding.weight"]
        x_WND = (
            torch.stack([F.embedding(ids_WBT[w], table[w]) for w in range(workers)]).flatten(1, 2).to(narrow)
        )
        for layer in range(len(self._gpt.blocks)):
            at = f"blocks.{layer}."
            h_WND = _norm(x_WND, leaves[at + "attention_norm.weight"])
            qkv = _linear(h_WND, leaves[at + "attention.qkv"].flatten(1, 2))
            stacked = qkv.view(workers * batch, time, 3 * heads, -1).transpose(1, 2)
            rotated, v = stacked[:, : 2 * heads], stacked[:, 2 * heads :]
            q, k = rotate(rotated, cos_TK, sin_TK).chunk(2, dim=1)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed_WND = mixed.transpose(1, 2).reshape(workers, batch * time, -1)
            x_WND = x_WND + _linear(mixed_WND, leaves[at + "attention.out"])
            x_WND = x_WND + _mlp(_norm(x_WND, leaves[at + "mlp_norm.weight"]), leaves, at + "mlp.")
        logits = _linear(_norm(x_WND, leaves["norm.weight"]), leaves.get("head.weight", table)).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets_WBT.flatten(), reduction="none")
        return losses.view(workers, -1).mean(dim=1)


def _linear(x_WND: torch.Tensor, weight_WOD: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x_WND, weight_WOD.to(x_WND.dtype).mT)


def _norm(x_WND: torch.Tensor, gain_WD: torch.Tensor) -> torch.Tensor:
    whole = F.rms_norm(x_WND.float(), x_WND.shape[-1:], None, NORM_EPS)
    return (whole * gain_WD[:, None]).to(x_WND.dtype)


def _mlp(x_WND: torch.Tensor, leaves: Stacked, at: str) -> torch.Tensor:
    if at + "up" in leaves:
        return _linear(F.gelu(_linear(x_WND, leaves[at + "up"]), approximate="tanh"), leaves[at + "down"])
    gate, up = _linear(x_WND, leaves[at + "gate_up"].flatten(1, 2)).chunk(2, dim=-1)
    return _linear(F.silu(gate) * up, leaves[at + "down"])


def _leaves(params: torch.Tensor, grads: torch.Tensor, layout: Layout) -> Stacked:
    """Each tensor of all workers as one leaf, whose gradient lands in its place of `grads`."""
    leaves = {}
    for tensor in layout.tensors:
        part = slice(tensor.offset, tensor.offset + tensor.numel)
        leaf = params[:, part].view(-1, *tensor.shape).detach().requires_grad_()
        leaf.grad = grads[:, part].view(-1, *tensor.shape)
        leaves[tensor.name] = leaf
    return leaves


def _stacked_optimiser(
    spec: SgdSpec | AdamWSpec | MuonSpec, one: FlatModel, params: torch.Tensor, grads: torch.Tensor
) -> Sgd | _StackedOptimiser:
    """The workers' optimisers in one: their vectors one after another are the vector of one larger model."""
    whole = FlatModel(model=one.model, layout=one.layout, params=params.view(-1), grads=grads.view(-1))
    return Sgd(spec, whole) if isinstance(spec, SgdSpec) else _StackedOptimiser(spec, one, whole, len(params))


class _StackedOptimiser:
    """AdamW or Muon, which have to know where each worker's tensors are."""

    def __init__(self, spec: AdamWSpec | MuonSpec, one: FlatModel, whole: FlatModel, workers: int) -> None:
        numel = one.params.numel()
        self._count = 0

        def everyone(tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
            return [
                TensorSpec(t.name, t.shape, t.offset + w * numel) for w in range(workers) for t in tensors
            ]

        hidden = hidden_matrices(one.model, one.layout.tensors) if isinstance(spec, MuonSpec) else []
        chosen = {matrix.tensor.name for matrix in hidden}
        rest = [tensor for tensor in one.layout.tensors if tensor.name not in chosen]
        self._adam = AdamPart(spec, whole, everyone(rest))
        self._muon: MuonPart | None = None
        if isinstance(spec, MuonSpec):
            matrices = [Matrix(tensor=tensor) for tensor in everyone([matrix.tensor for matrix in hidden])]
            self._muon = MuonPart(spec, whole, matrices)

    def step(self, factor: float) -> None:
        self._count += 1
        with torch.no_grad():
            self._adam.step(self._count, factor)
            if self._muon is not None:
                self._muon.step(factor)


def check_finite(losses: torch.Tensor, step_number: int) -> None:
    """Raise SH-TRAIN-01 unless every worker's loss is a number."""
    if not all(math.isfinite(loss) for loss in losses.tolist()):
        raise ShoalError(
            "SH-TRAIN-01",
            f"a worker's loss at step {step_number} is not finite",
            "lower the learning rate, or set inner.clip",
        )
