"""All members' models in one: a step of every member is one step of a stacked model.

In flows one batch for each member; out flow their parameters, as rows of one matrix. Invariant: each member computes
what a `TorchTrainer` of its own would, up to the rounding of products; a cell of the matrix takes seconds so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoal.apps.bench.converge.corpus import Corpus
from shoal.base.layout import Layout, TensorSpec
from shoal.data.dataset import Batch
from shoal.strategy.recipe import Recipe
from shoal.training.flat import FlatModel, flatten
from shoal.training.models import build_model, logits_of
from shoal.training.optimisers import AdamPart
from shoal.training.schedule import rate_factor
from shoal.training.spec import AdamWSpec

Tensors = dict[str, torch.Tensor]


class StackedTrainers:
    def __init__(self, recipe: Recipe, corpus: Corpus, members: int) -> None:
        assert isinstance(recipe.inner, AdamWSpec)
        self.inner = recipe.inner
        one = flatten(build_model(recipe.model, corpus.manifest, recipe.seed), torch.device("cpu"))
        self.layout: Layout = one.layout
        self.params = one.params.repeat(members, 1)
        """[members, parameters], changed in place."""
        self._model, self._count = one.model, 0
        self._grads = torch.zeros_like(self.params)
        self._leaves = _views(self.params, self.layout)
        self._slopes = _views(self._grads, self.layout)
        whole = FlatModel(
            model=one.model, layout=one.layout, params=self.params.view(-1), grads=self._grads.view(-1)
        )
        self._adam = AdamPart(recipe.inner, whole, _everyone(one.layout, members))
        self._each = vmap(grad(self._loss))

    def _loss(self, leaves: Tensors, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = functional_call(self._model, leaves, (inputs,))
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

    def step(self, batches: Sequence[Batch], step_number: int) -> None:
        """One optimiser step of every member on its own samples."""
        inputs = torch.stack([batch.inputs for batch in batches])
        targets = torch.stack([batch.targets for batch in batches])
        with sdpa_kernel(SDPBackend.MATH):  # The only attention that can be stacked.
            slopes = self._each(self._leaves, inputs, targets)
        for name, slope in slopes.items():
            self._slopes[name].copy_(slope)
        if self.inner.clip is not None:
            lengths = torch.linalg.vector_norm(self._grads, dim=1).clamp(min=self.inner.clip)
            self._grads.mul_((self.inner.clip / lengths)[:, None])
        self._count += 1
        with torch.no_grad():
            self._adam.step(self._count, rate_factor(self.inner, step_number))

    def guess(self, params: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of one model with these parameters."""
        leaves = {name: view[0] for name, view in _views(params[None], self.layout).items()}
        with torch.no_grad():
            return logits_of(lambda x: functional_call(self._model, leaves, (x,)), inputs)


def _views(rows: torch.Tensor, layout: Layout) -> Tensors:
    """Each tensor of all members."""
    return {
        tensor.name: rows[:, tensor.offset : tensor.offset + tensor.numel].view(-1, *tensor.shape)
        for tensor in layout.tensors
    }


def _everyone(layout: Layout, members: int) -> list[TensorSpec]:
    """The tensors of all members, as those of one larger model."""
    return [
        TensorSpec(tensor.name, tensor.shape, tensor.offset + member * layout.numel)
        for member in range(members)
        for tensor in layout.tensors
    ]
