"""The recipe's `model:` and `inner:` sections.

In flows what a person wrote; out flows a checked, frozen value. Invariant: with the data's manifest and a
seed, a spec determines the model's initial bytes and every local step.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shoal.base.section import Section


class GptSpec(Section):
    """A small modern decoder: RMSNorm, rotary positions, causal attention, no biases."""

    kind: Literal["gpt"] = "gpt"
    layers: int = Field(default=4, ge=1, le=256)
    width: int = Field(default=128, ge=2, le=1 << 16)
    heads: int = Field(default=4, ge=1, le=1024)
    context: int | None = Field(default=None, ge=1)
    """Longest sequence; the data's context where not given."""
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    hidden: int | None = Field(default=None, ge=1)
    """The MLP's inner width; about 8/3 of `width` for swiglu and 4 times for gelu where not given."""
    tied: bool = False
    """Share the embedding with the head: worth it when the vocabulary is large beside the layers."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> GptSpec:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not an even multiple of {self.heads} heads")
        return self

    @property
    def hidden_width(self) -> int:
        if self.hidden is not None:
            return self.hidden
        return 4 * self.width if self.mlp == "gelu" else -(-8 * self.width // 96) * 32


class TransformersSpec(Section):
    """A causal language model of `transformers`: fresh from a configuration, or from local weights."""

    kind: Literal["transformers"]
    architecture: str = "llama"
    """A model type that `transformers` knows, such as gpt2, gpt_neo or llama; bert and its like need `config:
    {is_decoder: true}`, since they see the tokens that they are to predict otherwise."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the architecture's default configuration."""
    weights: str | None = Field(default=None, min_length=1)
    """A local folder to start from; nothing is ever downloaded."""


class MlpSpec(Section):
    """Fully connected layers with GELU, on flattened samples."""

    kind: Literal["mlp"]
    width: int = Field(default=128, ge=1, le=1 << 16)
    layers: int = Field(default=2, ge=1, le=64)
    """Hidden layers."""


class CnnSpec(Section):
    """3x3 convolutions, halving the image and doubling the channels at each stage."""

    kind: Literal["cnn"]
    channels: int = Field(default=16, ge=1, le=4096)
    stages: int = Field(default=2, ge=1, le=8)


class ResnetSpec(Section):
    """Residual blocks with group normalisation, which keeps no running statistics."""

    kind: Literal["resnet"]
    channels: int = Field(default=16, ge=1, le=4096)
    stages: int = Field(default=2, ge=1, le=8)
    blocks: int = Field(default=1, ge=1, le=64)
    """Residual blocks in a stage."""


class OwnModelSpec(Section):
    """A model that the participants' own program builds: the run knows its parameters, nothing else."""

    kind: Literal["own"]
    description: str = Field(default="", max_length=200)


ModelSpec = Annotated[
    GptSpec | TransformersSpec | MlpSpec | CnnSpec | ResnetSpec | OwnModelSpec, Field(discriminator="kind")
]

Rate = Annotated[float, Field(gt=0, lt=1e3)]
Decay = Annotated[float, Field(ge=0, lt=10)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class _Inner(Section):
    batch_size: int = Field(default=8, ge=1, le=1 << 20)
    micro_batch: int | None = Field(default=None, ge=1)
    """Samples at once; lower it when a batch does not fit. The step stays the same but for rounding."""
    split: int = Field(default=1, ge=1, le=64)
    """Optimiser steps on each batch, each on its part of it. Private steps are never split."""
    clip: float | None = Field(default=1.0, gt=0)
    """Longest gradient; null to leave gradients as they are."""
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    total_steps: int | None = Field(default=None, ge=1)
    floor: float = Field(default=0.1, ge=0, le=1)
    """Where the schedule ends, as a fraction of the rate."""
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> _Inner:
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"a {self.schedule} schedule needs total_steps")
        return self


class SgdSpec(_Inner):
    kind: Literal["sgd"]
    lr: Rate = 0.1
    momentum: Fraction = 0.0
    nesterov: bool = False
    weight_decay: Decay = 0.0


class AdamWSpec(_Inner):
    kind: Literal["adamw"] = "adamw"
    lr: Rate = 1e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: Decay = 0.1
    """On matrices; gains and biases are never decayed."""


class MuonSpec(_Inner):
    """Muon on hidden matrices; AdamW, with its own rate, on embeddings, head, gains and biases."""

    kind: Literal["muon"]
    lr: Rate = 0.02
    momentum: Fraction = 0.95
    weight_decay: Decay = 0.01
    newton_schulz_steps: int = Field(default=5, ge=1, le=20)
    adamw_lr: Rate = 1e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    adamw_weight_decay: Decay = 0.1


class OwnInnerSpec(Section):
    """The optimiser of the participants' own program; the run says only how many samples a step takes."""

    kind: Literal["own"]
    batch_size: int = Field(default=8, ge=1, le=1 << 20)


InnerSpec = Annotated[SgdSpec | AdamWSpec | MuonSpec | OwnInnerSpec, Field(discriminator="kind")]
