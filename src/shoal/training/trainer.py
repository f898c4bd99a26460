"""The local loop: a node's own model, one step at a time.

In flow parameters, sample indices and step numbers; out flow parameters. Invariant: on one machine and thread
count a step is a function of (parameters, local state, indices, step number), bit for bit, so that a claim
can be replayed. A step that raises has changed neither parameters nor local state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import blake3
import numpy as np
import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout
from shoal.data.assignment import Indices
from shoal.data.dataset import Batch, Dataset, Part
from shoal.data.manifest import Manifest
from shoal.training.device import make_repeatable
from shoal.training.flat import flatten
from shoal.training.localstate import encode_state, restore_state
from shoal.training.models import AnyModelSpec, build_model, draws_noise, logits_of, loss_of, losses_of
from shoal.training.optimisers import make_optimiser
from shoal.training.private import Noising, PerSample
from shoal.training.schedule import rate_factor
from shoal.training.spec import AdamWSpec, MuonSpec, SgdSpec

TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did: the batch's mean loss before it, and how much data it took."""

    loss: float
    samples: int
    tokens: int


class Trainer(Protocol):
    """The owner of a local model. Not safe for concurrent use: merges happen between steps."""

    @property
    def layout(self) -> Layout: ...
    def params(self) -> torch.Tensor:
        """The live parameters: one flat float32 vector on the trainer's device, changed in place."""

    def load(self, params: torch.Tensor) -> None:
        """Copy these parameters in."""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        """One optimiser step on these samples. Raises SH-TRAIN-01 where loss or gradient is not finite."""

    def local_state(self) -> bytes:
        """Everything besides the parameters that the next step depends on."""

    def load_local_state(self, data: bytes) -> None:
        """Go on from an earlier `local_state`. Raises SH-DISK-02 where it is not one of this trainer's."""

    def evaluate(self, max_batches: int) -> float:
        """The mean validation loss over at most so many batches, always the same ones."""


def parts_of(indices: Indices, split: int) -> list[Indices]:
    """A batch in `split` parts of about one size, none of them empty."""
    return np.array_split(indices, min(split, len(indices)))


class TorchTrainer:
    """A `Trainer` on one torch device."""

    def __init__(
        self,
        model_spec: AnyModelSpec,
        inner_spec: SgdSpec | AdamWSpec | MuonSpec,
        manifest: Manifest,
        dataset: Dataset,
        seed: int,
        device: torch.device,
        *,
        fragments: int = 1,
        allow_code: bool = False,
    ) -> None:
        make_repeatable(device)
        self._inner = inner_spec
        self._dataset = dataset
        self._seed = seed
        self._device = device
        self._flat = flatten(
            build_model(model_spec, manifest, seed, allow_code=allow_code), device, fragments
        )
        self._model = self._flat.model.train()
        self._forward = torch.compile(self._model) if inner_spec.compile else self._model
        self._optimiser = make_optimiser(inner_spec, self._flat)
        self._noisy = draws_noise(self._model)
        self._targets = manifest.context if manifest.kind == "tokens" else 1

    @property
    def layout(self) -> Layout:
        return self._flat.layout

    @property
    def batch_size(self) -> int:
        return self._inner.batch_size

    def params(self) -> torch.Tensor:
        return self._flat.params

    def load(self, params: torch.Tensor) -> None:
        if params.shape != self._flat.params.shape:
            raise ValueError(f"{tuple(params.shape)} parameters for a model of {self.layout.numel}")
        self._flat.params.copy_(params)

    def step(self, indices: Indices, step_number: int) -> StepResult:
        total = 0.0
        for part in parts_of(indices, self._inner.split):
            self._flat.grads.zero_()
            with self._noise(step_number, part):
                loss = self._backward(part)
            total += self._descend(loss, step_number) * len(part)
        samples = len(indices)
        return StepResult(loss=total / samples, samples=samples, tokens=self.targets(samples))

    def _descend(self, loss: torch.Tensor, step_number: int) -> float:
        """Step along the flat gradient; the loss as a number. Raises SH-TRAIN-01."""
        norm = torch.linalg.vector_norm(self._flat.grads)
        loss_value, norm_value = (float(value) for value in torch.stack((loss, norm)).tolist())
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            raise ShoalError(
                "SH-TRAIN-01",
                f"step {step_number} gave a loss of {loss_value} and a gradient of length {norm_value}",
                "lower the learning rate, or set inner.clip",
            )
        if self._inner.clip is not None and norm_value > self._inner.clip:
            self._flat.grads.mul_(self._inner.clip / norm_value)
        self._optimiser.step(rate_factor(self._inner, step_number))
        return loss_value

    def private_step(self, indices: Indices, step_number: int, how: Noising) -> None:
        """One optimiser step on the noised sum of the samples' clipped gradients. Raises SH-TRAIN-01."""
        self._flat.grads.zero_()
        by_sample = PerSample(self._flat)
        rows = min(by_sample.rows, self._inner.micro_batch or len(indices) or 1)
        with self._noise(step_number, indices), self._autocast():
            for first in range(0, len(indices), rows):
                by_sample.add_clipped(self._batch(indices[first : first + rows], "train"), how.clip)
        by_sample.add_noise(how)
        self._descend(torch.zeros((), device=self._device), step_number)

    def targets(self, samples: int) -> int:
        """How many targets so many samples have."""
        return samples * self._targets

    def _backward(self, indices: Indices) -> torch.Tensor:
        """Add the batch's gradient to the flat one, by micro batches; the mean loss."""
        size = self._inner.micro_batch or len(indices)
        total = torch.zeros((), device=self._device)
        for first in range(0, len(indices), size):
            part = indices[first : first + size]
            batch = self._batch(part, "train")
            with self._autocast():
                loss = loss_of(self._forward, batch) * (len(part) / len(indices))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def losses(self, indices: Indices) -> torch.Tensor:
        """The loss of each of these samples at the live parameters. Forward only."""
        with torch.no_grad(), self._noise(0, indices), self._autocast():
            return losses_of(self._forward, self._batch(indices, "train"))

    def pull(self, indices: Indices, weights: torch.Tensor) -> torch.Tensor:
        """What these samples, as a part of a batch in which each counts for its weight, add to the next step: how far
        the parameters go down with them and without. Parameters and memory stay as they are."""
        self._flat.grads.zero_()
        size, weights = self._inner.micro_batch or len(indices), weights.to(self._device)
        with self._noise(0, indices):
            for first in range(0, len(indices), size):
                part = slice(first, first + size)
                with self._autocast():
                    each = losses_of(self._forward, self._batch(indices[part], "train"))
                    loss = (each * weights[part]).sum() / self.batch_size
                loss.backward()  # type: ignore[no-untyped-call]
        gradient = self._flat.grads.clone()
        return self._stepped(torch.zeros_like(gradient)) - self._stepped(gradient)

    def lasting(self, later: int) -> float:
        """Of all that momentum makes of a sample, what is in the parameters when so many samples have followed it."""
        inner = self._inner
        momentum = inner.betas[0] if isinstance(inner, AdamWSpec) else inner.momentum
        return 1 - float(momentum ** (1 + later * inner.split // inner.batch_size))

    def _stepped(self, gradient: torch.Tensor) -> torch.Tensor:
        """Where a step along this gradient leads from the origin, where no digit of it is lost."""
        params, memory = self._flat.params.clone(), {n: t.clone() for n, t in self._optimiser.state.items()}
        count = self._optimiser.count
        self._flat.params.zero_()
        self._flat.grads.copy_(gradient)
        self._optimiser.step(1.0)
        there = self._flat.params.clone()
        self._flat.params.copy_(params)
        for name, tensor in self._optimiser.state.items():
            tensor.copy_(memory[name])
        self._optimiser.count = count
        return there

    def local_state(self) -> bytes:
        return encode_state(self._inner.kind, self._optimiser)

    def load_local_state(self, data: bytes) -> None:
        restore_state(self._inner.kind, self._optimiser, data)

    def evaluate(self, max_batches: int) -> float:
        return self._validate(max_batches, lambda batch: loss_of(self._forward, batch))

    def accuracy(self, max_batches: int) -> float:
        """The fraction of validation targets that the model finds most likely."""
        return self._validate(max_batches, self._hits)

    def _hits(self, batch: Batch) -> torch.Tensor:
        guesses = logits_of(self._forward, batch.inputs).argmax(dim=-1)
        return (guesses == batch.targets).float().mean()

    def sample(self, prompt: str, length: int, seed: int) -> str:
        """Continue the prompt by `length` tokens, drawn with this seed. Raises SH-DATA-03 without text."""
        tokeniser = self._dataset.tokeniser()
        ids = [int(token) for token in tokeniser.encode(prompt or "\n")]
        draws = np.random.Generator(np.random.Philox(seed)).random(length)
        self._model.eval()
        with torch.no_grad(), self._autocast():
            for draw in draws:
                window = torch.tensor([ids[-self._targets :]], device=self._device)
                logits = logits_of(self._model, window)[0, -1, : tokeniser.vocab_size].float().cpu().double()
                chances = torch.softmax(logits / TEMPERATURE, dim=-1).cumsum(dim=-1).numpy()
                ids.append(min(int(np.searchsorted(chances, draw)), tokeniser.vocab_size - 1))
        self._model.train()
        return tokeniser.decode(ids)

    def _validate(self, max_batches: int, measure: Callable[[Batch], torch.Tensor]) -> float:
        """The mean of a per-sample measure over the first validation batches."""
        size = self._inner.micro_batch or self._inner.batch_size
        samples = min(self._dataset.validation_items, max(1, max_batches) * size)
        total = 0.0
        self._model.eval()
        with torch.no_grad(), self._autocast():
            for first in range(0, samples, size):
                indices = np.arange(first, min(first + size, samples))
                total += measure(self._batch(indices, "validation")).item() * len(indices)
        self._model.train()
        return total / samples

    def _batch(self, indices: Indices, part: Part) -> Batch:
        batch = self._dataset.batch(indices, part)
        return Batch(batch.inputs.to(self._device), batch.targets.to(self._device))

    def _autocast(self) -> AbstractContextManager[object]:
        if self._inner.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    @contextmanager
    def _noise(self, step_number: int, indices: Indices) -> Iterator[None]:
        """Draw dropout from (seed, step, samples), and leave the process's own randomness alone."""
        if not self._noisy:
            yield
            return
        text = (
            f"shoal/noise/{self._seed}/{step_number}/".encode()
            + np.ascontiguousarray(indices, "<i8").tobytes()
        )
        devices = [] if self._device.type == "cpu" else [self._device]
        with torch.random.fork_rng(devices=devices, device_type=self._device.type if devices else "cuda"):
            torch.manual_seed(int.from_bytes(blake3.blake3(text).digest(length=7), "little"))
            yield
