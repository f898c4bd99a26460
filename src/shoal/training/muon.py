"""Muon: momentum, then the nearest orthogonal matrix as the step.

In flow gradients of hidden matrices; out flow steps whose directions all have about the same length.
Invariant: matrices of one shape are orthogonalised together, and the result depends on each alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from shoal.base.layout import TensorSpec
from shoal.training.flat import FlatModel, pieces, spans
from shoal.training.spec import MuonSpec

# A quintic whose iteration drives every singular value in (0, 1] towards 1, fast rather than exactly.
QUINTIC = (3.4445, -4.7750, 2.0315)
GROUP_ELEMENTS = 1 << 25
"""Elements orthogonalised at once: bounds the scratch memory of large models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A parameter that is one matrix (convolutions: outputs by the rest), or a stack of them (3 axes)."""

    tensor: TensorSpec
    transposed: bool = False
    """Stored as (in, out) instead of (out, in)."""

    @property
    def stack(self) -> tuple[int, int, int]:
        """How many, rows, columns."""
        shape = self.tensor.shape
        if len(shape) == 3:
            return shape[0], shape[1], shape[2]
        return 1, shape[0], math.prod(shape[1:])

    @property
    def scale(self) -> float:
        """Tall matrices take longer steps, so that their outputs change as much as those of wide ones."""
        _, rows, columns = self.stack
        return math.sqrt(max(1.0, columns / rows if self.transposed else rows / columns))


class MuonPart:
    def __init__(self, spec: MuonSpec, flat: FlatModel, matrices: list[Matrix]) -> None:
        self._spec = spec
        places = spans(matrix.tensor for matrix in matrices)
        sizes = [stop - start for start, stop in places]
        self.momentum = torch.zeros(sum(sizes), device=flat.params.device)
        self._momenta = pieces(self.momentum, sizes)
        self._grads = [flat.grads[start:stop] for start, stop in places]
        self._params = [flat.params[start:stop] for start, stop in places]
        self._groups = [_Group(flat, group) for group in _grouped(matrices)]

    def step(self, factor: float) -> None:
        if not self._params:
            return
        spec, rate = self._spec, self._spec.lr * factor
        torch._foreach_lerp_(self._momenta, self._grads, 1 - spec.momentum)
        torch._foreach_lerp_(self._grads, self._momenta, spec.momentum)
        if spec.weight_decay:
            torch._foreach_mul_(self._params, 1 - rate * spec.weight_decay)
        for group in self._groups:
            group.step(rate, spec.newton_schulz_steps)


class _Group:
    """Matrices of one shape and scale."""

    def __init__(self, flat: FlatModel, matrices: list[Matrix]) -> None:
        self._scale = matrices[0].scale
        self._counts = [matrix.stack[0] for matrix in matrices]
        self._params = [_stack(flat.params, matrix) for matrix in matrices]
        self._grads = [_stack(flat.grads, matrix) for matrix in matrices]

    def step(self, rate: float, iterations: int) -> None:
        directions = orthogonalise(torch.cat(self._grads), iterations)
        torch._foreach_add_(self._params, pieces(directions, self._counts), alpha=-rate * self._scale)


def orthogonalise(matrices: torch.Tensor, iterations: int) -> torch.Tensor:
    """For each matrix of [N, rows, columns], about the nearest one with orthonormal rows or columns."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    # Half precision is enough for a direction, and fast where the hardware has it.
    x = x.to(torch.bfloat16) if x.device.type == "cuda" else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def _stack(vector: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    tensor = matrix.tensor
    return vector[tensor.offset : tensor.offset + tensor.numel].view(matrix.stack)


def _grouped(matrices: list[Matrix]) -> list[list[Matrix]]:
    """Matrices of one shape together, in their order, as many as the scratch memory allows."""
    groups: dict[tuple[int, int, float], list[list[Matrix]]] = {}
    for matrix in matrices:
        key = (*matrix.stack[1:], matrix.scale)
        lists = groups.setdefault(key, [[]])
        if lists[-1] and sum(m.tensor.numel for m in lists[-1]) + matrix.tensor.numel > GROUP_ELEMENTS:
            lists.append([])
        lists[-1].append(matrix)
    return [group for lists in groups.values() for group in lists]
