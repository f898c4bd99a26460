"""Small classifiers for images and other arrays.

In flow samples as float32; out flow class logits. Invariant: every number a model keeps is a parameter: group
normalisation instead of batch statistics, so that the flat vector is the whole model.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from shoal.training.initial import fill_normal
from shoal.training.spec import CnnSpec, MlpSpec, ResnetSpec

GROUP_CHANNELS = 8


class Mlp(nn.Module):
    def __init__(self, spec: MlpSpec, inputs: int, classes: int) -> None:
        super().__init__()
        widths = [inputs, *[spec.width] * spec.layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(spec.width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = F.gelu(layer(x))
        logits: torch.Tensor = self.head(x)
        return logits


class Cnn(nn.Module):
    def __init__(self, spec: CnnSpec, channels_in: int, classes: int) -> None:
        super().__init__()
        sizes = [channels_in, *(spec.channels << stage for stage in range(spec.stages))]
        self.stages = nn.ModuleList(_Convolution(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _as_image(x)
        for number, stage in enumerate(self.stages):
            x = F.gelu(stage(x if number == 0 else _halved(x)))
        logits: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class Resnet(nn.Module):
    def __init__(self, spec: ResnetSpec, channels_in: int, classes: int) -> None:
        super().__init__()
        self.stem = _Convolution(channels_in, spec.channels)
        sizes = [spec.channels << stage for stage in range(spec.stages)]
        self.stages = nn.ModuleList(
            nn.ModuleList(
                _Residual(sizes[max(0, stage - 1)] if block == 0 else size, size)
                for block in range(spec.blocks)
            )
            for stage, size in enumerate(sizes)
        )
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(_as_image(x))
        for number, stage in enumerate(self.stages):
            x = x if number == 0 else _halved(x)
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                x = block(x)
        logits: torch.Tensor = self.head(F.gelu(x).mean(dim=(2, 3)))
        return logits


class _Convolution(nn.Module):
    """3x3, the size kept, normalised in groups of channels."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(math.gcd(channels, max(1, channels // GROUP_CHANNELS)), channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.conv(x))
        return normed


class _Residual(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.first = _Convolution(channels_in, channels)
        self.second = _Convolution(channels, channels)
        self.skip = None if channels_in == channels else nn.Conv2d(channels_in, channels, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.second(F.gelu(self.first(F.gelu(x))))
        return inner + (x if self.skip is None else self.skip(x))


def build_vision(
    spec: MlpSpec | CnnSpec | ResnetSpec, sample_shape: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """A fresh classifier: weights scaled by their inputs, biases zero, gains one."""
    model: nn.Module
    channels_in = sample_shape[0] if len(sample_shape) == 3 else 1
    if isinstance(spec, MlpSpec):
        model = Mlp(spec, math.prod(sample_shape), classes)
    elif isinstance(spec, CnnSpec):
        model = Cnn(spec, channels_in, classes)
    else:
        model = Resnet(spec, channels_in, classes)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            inputs = parameter[0].numel()
            fill_normal(parameter, seed, name, math.sqrt((1 if name.startswith("head") else 2) / inputs))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def _as_image(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1) if x.ndim == 3 else x


def _halved(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 2, ceil_mode=True)
