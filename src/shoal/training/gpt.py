"""A small modern decoder, written so that it is exactly a Llama (or, with a GELU MLP, an Arcee).

In flow token ids; out flow logits. Shapes: B batch, T time, D width, H heads, K head width, F hidden, V
vocabulary. Invariant: `export` maps every parameter onto the published architecture without change of value.
Query, key and value (and gate and up) are one stacked parameter, for one large product instead of several.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from shoal.training.initial import fill_normal
from shoal.training.spec import GptSpec

NORM_EPS = 1e-6
ROTARY_BASE = 10000.0
INITIAL_DEVIATION = 0.02


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, NORM_EPS)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Parameter(torch.empty(3, width, width))
        self.out = nn.Parameter(torch.empty(width, width))

    def forward(self, x_BTD: torch.Tensor, cos_TK: torch.Tensor, sin_TK: torch.Tensor) -> torch.Tensor:
        batch, time, width = x_BTD.shape
        stacked = (
            F.linear(x_BTD, self.qkv.flatten(0, 1)).view(batch, time, 3 * self.heads, -1).transpose(1, 2)
        )
        rotated, v_BHTK = stacked[:, : 2 * self.heads], stacked[:, 2 * self.heads :]
        q_BHTK, k_BHTK = rotate(rotated, cos_TK, sin_TK).chunk(2, dim=1)
        mixed = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, time, width), self.out)


class SwigluMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2, hidden, width))
        self.down = nn.Parameter(torch.empty(width, hidden))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        gate_BTF, up_BTF = F.linear(x_BTD, self.gate_up.flatten(0, 1)).chunk(2, dim=-1)
        return F.linear(F.silu(gate_BTF) * up_BTF, self.down)


class GeluMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(hidden, width))
        self.down = nn.Parameter(torch.empty(width, hidden))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(x_BTD, self.up), approximate="tanh"), self.down)


class Block(nn.Module):
    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(spec.width)
        self.attention = Attention(spec.width, spec.heads)
        self.mlp_norm = RmsNorm(spec.width)
        mlp = SwigluMlp if spec.mlp == "swiglu" else GeluMlp
        self.mlp = mlp(spec.width, spec.hidden_width)

    def forward(self, x_BTD: torch.Tensor, cos_TK: torch.Tensor, sin_TK: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TK, sin_TK)
        x_BTD = x_BTD + self.mlp(self.mlp_norm(x_BTD))
        return x_BTD


class Gpt(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, spec: GptSpec, vocab_size: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, spec.width)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = RmsNorm(spec.width)
        self.head = nn.Linear(spec.width, vocab_size, bias=False)
        if spec.tied:
            self.head.weight = self.embedding.weight
        cos_TK, sin_TK = _rotary_tables(context, spec.width // spec.heads)
        self.register_buffer("cos", cos_TK, persistent=False)
        self.register_buffer("sin", sin_TK, persistent=False)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        time = ids_BT.shape[1]
        x_BTD = self.embedding(ids_BT)
        cos_TK, sin_TK = self.cos[:time], self.sin[:time]
        for block in self.blocks:
            x_BTD = block(x_BTD, cos_TK, sin_TK)
        logits_BTV: torch.Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def build_gpt(spec: GptSpec, vocab_size: int, context: int, seed: int) -> Gpt:
    """A fresh model. What writes into the residual stream starts smaller, since every layer adds to it."""
    model = Gpt(spec, vocab_size, context)
    residual = INITIAL_DEVIATION / math.sqrt(2 * spec.layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            writes = name.endswith((".out", ".down"))
            fill_normal(parameter, seed, name, residual if writes else INITIAL_DEVIATION)
    return model


def _rotary_tables(context: int, head_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine for each position, both halves of a head alike."""
    frequencies = 1.0 / ROTARY_BASE ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x_BHTK: torch.Tensor, cos_TK: torch.Tensor, sin_TK: torch.Tensor) -> torch.Tensor:
    """Turn each pair (k, k + K/2) by its position's angle."""
    first, second = x_BHTK.chunk(2, dim=-1)
    turned = x_BHTK * cos_TK + torch.cat((second, first), dim=-1) * sin_TK
    return turned.to(x_BHTK.dtype)
