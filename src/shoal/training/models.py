"""From a recipe's model section to a model, and from a model and a batch to a loss.

In flow spec, manifest and seed; out flows a module on the CPU. Invariant: the same three give the same bytes,
and whatever its family, a model is trained through `loss_of` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shoal.base.errors import ShoalError
from shoal.base.memory import free_memory_bytes
from shoal.base.units import show_bytes
from shoal.data.dataset import Batch
from shoal.data.manifest import Manifest
from shoal.training.gpt import build_gpt
from shoal.training.pretrained import build_pretrained, dropout_rates
from shoal.training.spec import CnnSpec, GptSpec, MlpSpec, OwnModelSpec, ResnetSpec, TransformersSpec
from shoal.training.vision import build_vision

BuildableSpec = GptSpec | TransformersSpec | MlpSpec | CnnSpec | ResnetSpec
AnyModelSpec = BuildableSpec | OwnModelSpec
COPIES = 3
"""How many times a model lies in memory at least, whatever is done with it: itself, the flat state, and that in bytes.
"""
TRIED_TOKENS = 8
ROUNDING = 1e-4
"""What a change of the last token may change of earlier predictions, beside its own: experts sum in another order."""


def build_model(spec: AnyModelSpec, manifest: Manifest, seed: int, *, allow_code: bool = False) -> nn.Module:
    """A model for this data, in float32 on the CPU. Raises SH-MODEL-01 where the two do not fit."""
    if isinstance(spec, OwnModelSpec):
        raise _misfit("it is built by the participants' own program, through `shoal.join`")
    wanted = "tokens" if isinstance(spec, GptSpec | TransformersSpec) else "arrays"
    if manifest.kind != wanted:
        raise _misfit(f"a {spec.kind} model needs {wanted}, and the data is {manifest.kind}")
    with torch.random.fork_rng(devices=[]):
        try:
            _check_room(spec, manifest)
            torch.manual_seed(seed % (1 << 63))
            model = _build(spec, manifest, seed, allow_code)
        except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # Sizes that no memory has.
            raise _misfit(str(error).partition("\n")[0]) from error
    _check_parameters_only(model)
    return model


def _build(spec: BuildableSpec, manifest: Manifest, seed: int, allow_code: bool) -> nn.Module:
    if isinstance(spec, GptSpec):
        context = spec.context or manifest.context
        if context < manifest.context:
            raise _misfit(f"its context {context} is shorter than the data's {manifest.context}")
        return build_gpt(spec, manifest.vocab_size, context, seed)
    if isinstance(spec, TransformersSpec):
        return build_pretrained(spec, manifest.vocab_size, manifest.context, allow_code)
    if not isinstance(spec, MlpSpec) and len(manifest.sample_shape) not in (2, 3):
        raise _misfit(f"a {spec.kind} needs images, and samples have shape {manifest.sample_shape}")
    return build_vision(spec, manifest.sample_shape, manifest.classes, seed)


def _check_room(spec: BuildableSpec, manifest: Manifest) -> None:
    """Refuse what this machine cannot hold before it is filled: the system would end the process, not the attempt."""
    if isinstance(spec, TransformersSpec) and spec.weights:
        return  # Of a folder's weights only the folder knows the size.
    try:
        with torch.device("meta"):
            model = _build(spec, manifest, 0, allow_code=False)
    except (ShoalError, RuntimeError, OverflowError, TypeError):
        return  # Building it in earnest says why, or can what building it without memory cannot.
    size_bytes = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    free_bytes = free_memory_bytes()
    if COPIES * size_bytes > free_bytes:
        raise _misfit(
            f"it takes {show_bytes(size_bytes)}, {COPIES} times that must fit into memory, and "
            f"{show_bytes(free_bytes)} are free here"
        )


def check_causal(model: nn.Module, manifest: Manifest) -> None:
    """Refuse a model that cannot be given windows of tokens, or that sees the token it is to predict: SH-MODEL-01.

    Not every architecture that `transformers` offers as a causal one is: BERT as it comes would learn to copy.
    """
    model.eval()
    tokens = torch.arange(min(manifest.context, TRIED_TOKENS))[None] % manifest.vocab_size
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % manifest.vocab_size
    try:
        with torch.no_grad():
            difference = (logits_of(model, tokens) - logits_of(model, changed)).abs().amax(dim=(0, 2))
    except Exception as error:  # as wherever the library's own code runs
        raise _misfit(f"it does not take windows of tokens: {error}".partition("\n")[0]) from error
    if len(difference) != tokens.shape[1]:
        raise _misfit(f"it gives {len(difference)} predictions for {tokens.shape[1]} tokens")
    if len(difference) > 1 and difference[:-1].max() > ROUNDING * difference[-1]:
        raise ShoalError(
            "SH-MODEL-01",
            f"{type(model).__name__} sees the tokens that it is to predict, and would learn to copy them",
            "set model.config.is_decoder to true where the architecture has it, or take a causal one: llama, gpt2",
        )


def logits_of(model: Callable[..., Any], inputs: torch.Tensor) -> torch.Tensor:
    """The model's logits, whether it returns them or an output that holds them."""
    output = model(inputs)
    logits: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return logits


def loss_of(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """The mean cross-entropy over every target of the batch."""
    logits = logits_of(model, batch.inputs)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), batch.targets.reshape(-1))


def losses_of(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """The mean cross-entropy of every sample of the batch over its own targets."""
    logits = logits_of(model, batch.inputs)
    each = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), batch.targets.reshape(-1), reduction="none"
    )
    return each.reshape(len(batch.inputs), -1).mean(dim=1)


def head_of(model: nn.Module) -> nn.Module | None:
    """The layer that makes the logits."""
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else getattr(model, "head", None)
    return head if isinstance(head, nn.Module) else None


def draws_noise(model: nn.Module) -> bool:
    """True if a training step of this model draws random numbers."""
    config = getattr(model, "config", None)
    if config is not None and any(rate > 0 for rate in dropout_rates(config).values()):
        return True
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _check_parameters_only(model: nn.Module) -> None:
    """Running statistics would not travel with the flat vector, so a model that has them is refused."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    extra = sorted(set(model.state_dict()) - parameters)
    if extra:
        raise _misfit(f"it keeps values that are not parameters: {', '.join(extra[:3])}")


def other_tensors() -> ShoalError:
    """What is built here from a run's recipe does not fit the run's state."""
    return ShoalError(
        "SH-MODEL-01",
        "the model built here has other tensors than the run's",
        "install the organiser's versions of shoal, torch and transformers",
    )


def _misfit(cause: str) -> ShoalError:
    return ShoalError(
        "SH-MODEL-01", f"the model cannot be built: {cause}", "check the recipe's model section"
    )
