"""Inner optimisers over a flat vector.

In flows the gradient vector, in place; out flow new parameters, in place. Invariant: an optimiser's whole
memory is its `state` (named flat tensors) and its `count` of steps, so that both can be published, stored and
restored bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from torch.optim.adamw import adamw

from shoal.base.layout import TensorSpec
from shoal.training.flat import FlatModel, pieces, spans
from shoal.training.models import head_of
from shoal.training.muon import Matrix, MuonPart
from shoal.training.spec import AdamWSpec, MuonSpec, SgdSpec


class InnerOptimiser(Protocol):
    count: int
    """Steps taken since the state was all zeros."""

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The live state tensors by name, for reading and for copying into."""

    def step(self, factor: float) -> None:
        """Take one step along the gradient vector, with every rate times `factor`. May overwrite it."""


def make_optimiser(spec: SgdSpec | AdamWSpec | MuonSpec, flat: FlatModel) -> InnerOptimiser:
    if isinstance(spec, SgdSpec):
        return Sgd(spec, flat)
    return AdamW(spec, flat) if isinstance(spec, AdamWSpec) else Muon(spec, flat)


class Sgd:
    """Gradient descent with (Nesterov) momentum; weight decay joins the gradient, on every parameter."""

    def __init__(self, spec: SgdSpec, flat: FlatModel) -> None:
        self.count = 0
        self._spec = spec
        self._flat = flat
        self._momentum = torch.zeros_like(flat.params) if spec.momentum else None

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return {} if self._momentum is None else {"momentum": self._momentum}

    def step(self, factor: float) -> None:
        spec, gradient = self._spec, self._flat.grads
        if spec.weight_decay:
            gradient.add_(self._flat.params, alpha=spec.weight_decay)
        if self._momentum is not None:
            self._momentum.mul_(spec.momentum).add_(gradient)
            nesterov = gradient.add_(self._momentum, alpha=spec.momentum) if spec.nesterov else None
            gradient = self._momentum if nesterov is None else nesterov
        self._flat.params.add_(gradient, alpha=-spec.lr * factor)
        self.count += 1


class AdamPart:
    """AdamW on some of the tensors: matrices decay, gains and biases do not."""

    def __init__(self, spec: AdamWSpec | MuonSpec, flat: FlatModel, tensors: Sequence[TensorSpec]) -> None:
        if isinstance(spec, AdamWSpec):
            self._rate, self._decay = spec.lr, spec.weight_decay
        else:
            self._rate, self._decay = spec.adamw_lr, spec.adamw_weight_decay
        self._betas, self._eps = spec.betas, spec.eps
        size = sum(tensor.numel for tensor in tensors)
        self.first = torch.zeros(size, device=flat.params.device)
        self.second = torch.zeros_like(self.first)
        matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
        vectors = [tensor for tensor in tensors if len(tensor.shape) <= 1]
        self._decayed = _AdamSpans(flat, spans(matrices), self.first, self.second, 0)
        self._plain = _AdamSpans(flat, spans(vectors), self.first, self.second, self._decayed.size)

    def step(self, count: int, factor: float) -> None:
        """Step number `count`, the first being 1."""
        for part, decay in ((self._decayed, self._decay), (self._plain, 0.0)):
            part.step(count, self._rate * factor, decay, self._betas, self._eps)


class _AdamSpans:
    """Contiguous pieces of the vectors, stepped by one fused call."""

    def __init__(
        self,
        flat: FlatModel,
        places: list[tuple[int, int]],
        first: torch.Tensor,
        second: torch.Tensor,
        offset: int,
    ) -> None:
        sizes = [stop - start for start, stop in places]
        self.size = sum(sizes)
        self._params = [flat.params[start:stop] for start, stop in places]
        self._grads = [flat.grads[start:stop] for start, stop in places]
        self._first = pieces(first[offset:], sizes)
        self._second = pieces(second[offset:], sizes)
        device = flat.params.device
        self._fused = device.type in ("cpu", "cuda")
        self._counts = [torch.zeros((), device=device if self._fused else "cpu") for _ in places]

    def step(self, count: int, rate: float, decay: float, betas: tuple[float, float], eps: float) -> None:
        if not self._params:
            return
        for done in self._counts:
            done.fill_(count - 1)
        adamw(
            self._params,
            self._grads,
            self._first,
            self._second,
            [],
            self._counts,
            foreach=not self._fused,
            fused=self._fused,
            amsgrad=False,
            beta1=betas[0],
            beta2=betas[1],
            lr=rate,
            weight_decay=decay,
            eps=eps,
            maximize=False,
        )


class AdamW:
    def __init__(self, spec: AdamWSpec, flat: FlatModel) -> None:
        self.count = 0
        self._part = AdamPart(spec, flat, flat.layout.tensors)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return {"first": self._part.first, "second": self._part.second}

    def step(self, factor: float) -> None:
        self.count += 1
        with torch.no_grad():
            self._part.step(self.count, factor)


class Muon:
    """Muon on the hidden matrices, AdamW on everything else."""

    def __init__(self, spec: MuonSpec, flat: FlatModel) -> None:
        self.count = 0
        hidden = hidden_matrices(flat.model, flat.layout.tensors)
        chosen = {matrix.tensor.name for matrix in hidden}
        rest = [tensor for tensor in flat.layout.tensors if tensor.name not in chosen]
        self._adam = AdamPart(spec, flat, rest)
        self._muon = MuonPart(spec, flat, hidden)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        adam = self._adam
        return {"first": adam.first, "second": adam.second, "momentum": self._muon.momentum}

    def step(self, factor: float) -> None:
        self.count += 1
        with torch.no_grad():
            self._adam.step(self.count, factor)
            self._muon.step(factor)


def hidden_matrices(model: nn.Module, tensors: Sequence[TensorSpec]) -> list[Matrix]:
    """The matrices inside the network: neither embeddings, nor the head, nor tied to either."""
    outer: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outer += [head] if (head := head_of(model)) is not None else []
    excluded = {id(parameter) for module in outer for parameter in module.parameters()}
    # `transformers` keeps some architectures' weights as (in, out).
    turned = {
        id(parameter)
        for module in model.modules()
        if type(module).__name__ == "Conv1D"
        for parameter in module.parameters()
    }
    owners = dict(model.named_parameters())
    return [
        Matrix(tensor=tensor, transposed=id(owners[tensor.name]) in turned)
        for tensor in tensors
        if len(tensor.shape) > 1 and id(owners[tensor.name]) not in excluded
    ]
