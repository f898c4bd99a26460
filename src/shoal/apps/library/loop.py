"""One model between two threads: a person's own training loop, and the node that puts it into a run.

In flow orders (train on these samples) from the node and reports (that was the loss) from the loop; out flows a
`Trainer`. Invariant: while the loop is inside a step the node leaves the model alone, and while the loop waits
for its next order only the node touches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import nn

from shoal.apps.library.optimizers import encode_optimizer, restore_optimizer
from shoal.base.errors import ShoalError
from shoal.base.layout import Layout
from shoal.data.assignment import Indices
from shoal.training.flat import flatten, view_of
from shoal.training.trainer import StepResult


@dataclass(frozen=True, slots=True)
class Report:
    """What the loop says of one step."""

    loss: float
    tokens: int | None = None


class Handover:
    """The only thing that both threads touch."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Indices | None] = SimpleQueue()
        self._reports: SimpleQueue[Report | None] = SimpleQueue()

    # The node's side.

    def ask(self, indices: Indices) -> Report:
        """Have the loop do one step. Raises `CancelledError` if the loop is gone, which ends the work quietly."""
        self._orders.put(indices)
        report = self._reports.get()
        if report is None:
            self._reports.put(None)  # for whoever asks next
            raise CancelledError
        return report

    def end(self) -> None:
        """There will be no more orders."""
        self._orders.put(None)

    # The loop's side.

    def take(self) -> Indices | None:
        """The next order, however long it takes; None at the end, also to a loop that asks again."""
        order = self._orders.get()
        if order is None:
            self._orders.put(None)
        return order

    def report(self, report: Report) -> None:
        self._reports.put(report)

    def quit(self) -> None:
        """The loop takes no more orders."""
        self._reports.put(None)


class LoopTrainer:
    """A `Trainer` whose steps are done by somebody else's loop.

    The model's parameters become views of one flat vector; whoever holds the `nn.Parameter`s (an optimiser, say)
    goes on holding them. Buffers (running statistics) stay this machine's own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        evaluate: Callable[[], float],
        handover: Handover,
        *,
        fragments: int,
    ) -> None:
        check_model(model, optimizer)
        self._model = model
        self._optimizer = optimizer
        self._evaluate = evaluate
        self._handover = handover
        self._flat = flatten(model, next(model.parameters()).device, fragments)
        optimizer.zero_grad(set_to_none=True)

    @property
    def layout(self) -> Layout:
        return self._flat.layout

    def params(self) -> torch.Tensor:
        return self._flat.params

    def load(self, params: torch.Tensor) -> None:
        self._gather()
        self._flat.params.copy_(params)

    def step(self, indices: Indices, step_number: int) -> StepResult:
        report = self._handover.ask(indices)
        self._gather()
        if not math.isfinite(report.loss):
            raise ShoalError(
                "SH-TRAIN-01",
                f"step {step_number} of the loop reported a loss of {report.loss}",
                "lower the learning rate, and call run.report(loss) after every step",
            )
        samples = len(indices)
        tokens = samples if report.tokens is None else report.tokens
        return StepResult(loss=report.loss, samples=samples, tokens=tokens)

    def local_state(self) -> bytes:
        return encode_optimizer(self._optimizer)

    def load_local_state(self, data: bytes) -> None:
        restore_optimizer(self._optimizer, data)

    def evaluate(self, max_batches: int) -> float:
        training = [module for module in self._model.modules() if module.training]
        self._model.eval()
        try:
            with torch.no_grad():
                return float(self._evaluate())
        finally:
            for module in training:  # One by one: a part may have been in evaluation mode, and stays so.
                module.training = True

    def _gather(self) -> None:
        """Parameters that the loop gave other storage, with what they hold: `p.data = p.data - lr * p.grad`."""
        parameters = dict(self._model.named_parameters())
        for spec in self._flat.layout.tensors:
            home, parameter = view_of(self._flat.params, spec), parameters.get(spec.name)
            if parameter is None or (parameter.shape, parameter.dtype, parameter.device) != (
                home.shape,
                home.dtype,
                home.device,
            ):
                raise _unfit(
                    f"parameter {spec.name} has become another since the loop joined",
                    "convert, move and change the model before shoal.join, not after",
                )
            if parameter.data_ptr() != home.data_ptr() or not parameter.is_contiguous():
                home.copy_(parameter.detach())
                parameter.data = home


def check_parameters(model: nn.Module) -> None:
    """Refuse a model that has nothing to train, or not in float32. Raises SH-MODEL-01."""
    if next(model.parameters(), None) is None:
        raise _unfit("the model has no parameters", "give the module that is trained")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise _unfit(
                f"parameter {name} is {parameter.dtype}",
                "keep parameters in float32; autocast inside the step is welcome",
            )


def check_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what cannot be trained by a loop of one's own. Raises SH-MODEL-01."""
    check_parameters(model)
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if moved.isdisjoint(map(id, model.parameters())):
        raise _unfit(
            "the optimiser has none of the model's parameters: its steps would change nothing",
            "make it of the parameters of this very model",
        )


def _unfit(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-MODEL-01", cause, next_step)
