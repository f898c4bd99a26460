"""A model whose parameters, and whose gradients, are each one flat float32 vector.

In flows a module; out flow two vectors, the module's tensors being views into them. Invariant: a parameter is
stored once (tied weights too), so loading, publishing, clipping and stepping are operations on one vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shoal.base.layout import Layout, TensorSpec, make_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatModel:
    model: nn.Module
    layout: Layout
    params: torch.Tensor
    grads: torch.Tensor


def layout_of(model: nn.Module, fragments: int = 1) -> Layout:
    """The model's unique parameters, in its own order."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return make_layout(shapes, fragments)


def flatten(model: nn.Module, device: torch.device, fragments: int = 1) -> FlatModel:
    """Move the model to the device and its parameters into one vector. The model is changed in place."""
    model.to(device)
    layout = layout_of(model, fragments)
    params = torch.empty(layout.numel, dtype=torch.float32, device=device)
    grads = torch.zeros_like(params)
    for spec, (_, parameter) in zip(layout.tensors, model.named_parameters(), strict=True):
        home = view_of(params, spec)
        home.copy_(parameter.detach())
        parameter.data = home
        parameter.grad = view_of(grads, spec)
    return FlatModel(model=model, layout=layout, params=params, grads=grads)


def view_of(vector: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return vector[spec.offset : spec.offset + spec.numel].view(spec.shape)


def load_into(model: nn.Module, params: torch.Tensor) -> None:
    """Copy a flat vector into a model that has its own storage."""
    with torch.no_grad():
        for spec, (_, parameter) in zip(layout_of(model).tensors, model.named_parameters(), strict=True):
            parameter.copy_(view_of(params, spec))


def pieces(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Consecutive views along the first axis, of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [tensor[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def spans(tensors: Iterable[TensorSpec]) -> list[tuple[int, int]]:
    """The tensors' places in the vector, with neighbours joined."""
    joined: list[tuple[int, int]] = []
    for spec in tensors:
        start, stop = spec.offset, spec.offset + spec.numel
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined
