"""Put an existing PyTorch loop into a run.

    with shoal.join(ticket, model, optimizer, evaluate=validation_loss) as run:
        for indices in run:                 # until the run ends
            loss = loss_of(model, data[indices])    # or a batch from a loader of your own
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)

In flow a ticket, a model, an optimiser and a loop; out flows the model as everybody trained it. Invariant: the
model changes under the loop only between two steps, when a new global version is merged into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from shoal.apps.home import find_home
from shoal.apps.joining import Volunteer, take_part
from shoal.apps.library.background import Background
from shoal.apps.library.loop import Handover, LoopTrainer, Report, check_model
from shoal.apps.node_status import NodeNow, observe
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data.assignment import Indices
from shoal.node.service import NodeService
from shoal.runlog.entries import Genesis
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.ticket import Ticket, read_ticket
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.limits import Limits

END_S = 30.0


def join(
    ticket: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    evaluate: Callable[[], float],
    home: Path | None = None,
    name: str = "",
    port: int | None = None,
    bind: str = "0.0.0.0",  # noqa: S104 (used only by those who open a port)
    advertise: str | None = None,
    limits: Limits | None = None,
) -> Joined:
    """Take part in a run with a loop of one's own. Use the result in a `with` statement.

    `evaluate` gives the model's validation loss; it is called between steps, in another thread, without
    gradients. Joining again from the same `home` resumes. Raises SH-JOIN-01 for a ticket that cannot be read and
    SH-MODEL-01 for a model that cannot be trained; whatever goes wrong later is raised by the loop.
    """
    check_model(model, optimizer)
    volunteer = Volunteer(
        folder=find_home(home).node,
        name=str(name),
        device=next(model.parameters()).device.type,
        limits=limits or Limits(),
        port=port,
        bind=bind,
        advertise=advertise,
    )
    return Joined(volunteer, read_ticket(ticket), model, optimizer, evaluate)


class Joined:
    """A run, as a loop sees it: iterate for the samples of each step, report each step's loss."""

    def __init__(
        self,
        volunteer: Volunteer,
        ticket: Ticket,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        evaluate: Callable[[], float],
    ) -> None:
        self.ended = ""
        """Why the run ended, once it has."""
        self._volunteer = volunteer
        self._ticket = ticket
        self._model = model
        self._optimizer = optimizer
        self._evaluate = evaluate
        self._handover = Handover()
        self._in_step = False
        self._report: Report | None = None
        self._leaving = asyncio.Event()
        self._node: tuple[NodeService, RealHost] | None = None
        self._background: Background[str] | None = None

    def __enter__(self) -> Joined:
        if self._background is not None:
            raise ShoalError(
                "SH-RUN-01", "this loop has joined before", "call shoal.join again, which resumes"
            )
        self._background = Background("shoal node", self._take_part, self._handover.end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave, if the run has not ended; the model keeps what it has."""
        self._handover.quit()
        if self._background is not None:
            self._background.call(self._leaving.set)
            # Also after an error: who joins again finds the home free, and the run knows that this one left.
            if not self._background.wait(END_S):
                self._background.cancel()
                self.ended = self.ended or "left before the work had ended"
            elif error is None:
                self.ended = self.ended or self._background.result()

    def __iter__(self) -> Iterator[Indices]:
        if self._background is None:
            raise ShoalError(
                "SH-RUN-01", "the loop has not joined", "write `with shoal.join(...) as run:` around it"
            )
        while True:
            self._hand_back()
            indices = self._handover.take()
            if indices is None:
                self.ended = self._background.result()
                return
            self._in_step = True
            yield indices

    def report(self, loss: float | torch.Tensor, *, tokens: int | None = None) -> None:
        """The step's mean loss, and how many tokens it took where samples are sequences."""
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._report = Report(float(value), tokens)

    @property
    def now(self) -> NodeNow | None:
        """How it goes, for showing; None before the node is up."""
        if self._node is None:
            return None
        service, host = self._node
        return observe(service, host.meter.total())

    def _hand_back(self) -> None:
        """The step is over: the model is the node's until the next order."""
        if self._in_step:
            self._handover.report(self._report or Report(float("nan")))
            self._in_step, self._report = False, None

    async def _take_part(self) -> str:
        return await take_part(
            self._volunteer, self._ticket, self._make_trainer, _agree, self._watch, heed_signals=False
        )

    def _make_trainer(self, recipe: Recipe, genesis: Genesis, read: Callable[[BlobId], bytes]) -> Trainer:
        trainer = LoopTrainer(
            self._model,
            self._optimizer,
            self._evaluate,
            self._handover,
            fragments=recipe.strategy.schedule.fragments,
        )
        if trainer.layout != genesis.layout:
            raise ShoalError(
                "SH-MODEL-01",
                f"this model has {trainer.layout.numel} parameters in {len(trainer.layout.tensors)} tensors,"
                f" the run's {genesis.layout.numel} in {len(genesis.layout.tensors)}, or other names or shapes",
                "build the model exactly as the organiser's program does",
            )
        return trainer

    async def _watch(self, service: NodeService, host: RealHost) -> None:
        self._node = (service, host)
        await self._leaving.wait()
        await service.leave("the program left")


async def _agree(recipe: Recipe, genesis: Genesis) -> bool:
    """Whoever wrote the program knows what it trains."""
    return True
