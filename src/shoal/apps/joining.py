"""One volunteer's node from the first connection to the last word.

In flow a ticket and what the volunteer allows; out flows why it ended. Invariant: nothing of the run is trained
before the volunteer was told what it is and, where asked, has said yes; a signal ends it by saying goodbye.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from shoal.apps.home import make_folder
from shoal.apps.idle import IdleWatch
from shoal.apps.paced import PacedHost
from shoal.apps.scrubbing import scrub_node
from shoal.apps.tracing import spans_from_environment, trace_node
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.data.dataset import Dataset, open_dataset
from shoal.node.options import NodeOptions, TrainerFactory
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.entries import Genesis
from shoal.strategy.recipe import Recipe
from shoal.training.device import pick_device
from shoal.training.models import other_tensors
from shoal.training.spec import OwnInnerSpec, OwnModelSpec
from shoal.training.trainer import TorchTrainer, Trainer
from shoal.wire.identity import Identity
from shoal.wire.ticket import Ticket
from shoal.wire.versions import HERE, Speaks
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.limits import Limits
from shoal.worlds.real.locks import held

LEAVE_S = 10.0
"""How long leaving may take before what is left of the work is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volunteer:
    """What this machine gives, and under which conditions."""

    folder: Path
    """The node's own folder: key, logs, blobs."""
    name: str = ""
    device: str = "auto"
    threads: int | None = None
    gpu_memory_bytes: int | None = None
    limits: Limits = field(default_factory=Limits)
    when_idle: bool = False
    port: int | None = None
    bind: str = "0.0.0.0"  # noqa: S104 (a volunteer who opens a port wants it to be reached)
    advertise: str | None = None
    allow_code: bool = False
    patience_s: float = 30.0
    """How long the first connection may take before the node gives up."""
    min_price_micro: int = 0
    """For less than this a unit of work, in millionths of a credit, this machine does not train."""
    speaks: Speaks = HERE
    """The versions of the wire that it speaks."""


Agree = Callable[[Recipe, Genesis], Awaitable[bool]]
"""Tells the volunteer what will run; False if they would rather not."""
Watch = Callable[[NodeService, RealHost], Coroutine[Any, Any, None]]
Make = Callable[[RealHost, Identity, Invitation, TrainerFactory, NodeOptions], NodeService]
"""What takes part: a node, or a hub."""


async def take_part(
    volunteer: Volunteer,
    ticket: Ticket,
    make_trainer: TrainerFactory,
    agree: Agree,
    watch: Watch,
    *,
    heed_signals: bool = True,
    make: Make = NodeService,
) -> str:
    """Join, train and stay until the run ends or a signal says to leave; why it ended.

    Signals can be heeded in the main thread only.
    """
    identity = load_or_create_identity(volunteer.folder / "key")
    with alone(volunteer.folder / "runs" / ticket.run):
        async with host_for(volunteer, identity) as host:
            options = NodeOptions(
                give_up_s=volunteer.patience_s,
                agree=agree,
                may_train=IdleWatch().reason if volunteer.when_idle else lambda: "",
                traffic=lambda: _up_and_down(host),
                memory=lambda: psutil.virtual_memory().available,
                resent=host.meter.resent,
                device=volunteer.device,
                step_seconds=host.pacer.step_s if host.pacer else 0.0,
            )
            invitation = Invitation.from_ticket(ticket, volunteer.name, volunteer.min_price_micro)
            invitation = replace(invitation, speaks=volunteer.speaks)
            service = make(host, identity, invitation, make_trainer, options)
            return await _accompany(service, host, watch, heed_signals)


def host_for(volunteer: Volunteer, identity: Identity) -> PacedHost:
    """This machine as the volunteer lends it."""
    host = PacedHost(
        identity,
        FileDisk(volunteer.folder),
        bind=volunteer.bind,
        peer_port=volunteer.port,
        advertise=volunteer.advertise,
        limits=volunteer.limits,
    )
    if any(name.startswith("SHOAL_LAB_") for name in os.environ):
        from shoal.lab.pace import pacer

        host.pacer = pacer()
    return host


async def _accompany(
    service: NodeService,
    host: RealHost,
    watch: Watch,
    heed_signals: bool,
) -> str:
    """Run the service with those who watch it; the first error of either ends both."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(service.run(), name="node")
        watching = tasks.create_task(watch(service, host), name="show the node")
        scrubbing = tasks.create_task(scrub_node(service), name="scrub")
        tracing = tasks.create_task(
            trace_node(service, spans_from_environment(service.identity.node)), name="trace"
        )
        heeding = _leaving_on_signals(tasks, service, running)
        with heeding if heed_signals else contextlib.nullcontext():
            await asyncio.wait({running})
        watching.cancel()
        scrubbing.cancel()
        tracing.cancel()
    return "left" if running.cancelled() else running.result()


async def _leave(service: NodeService, running: asyncio.Task[str], reason: str) -> None:
    """Say goodbye and let the work end; cut off what does not end in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await service.leave(reason)
    await asyncio.wait({running}, timeout=LEAVE_S)
    if not running.done():
        running.cancel()


@contextlib.contextmanager
def _leaving_on_signals(
    tasks: asyncio.TaskGroup, service: NodeService, running: asyncio.Task[str]
) -> Iterator[None]:
    """The first signal leaves cleanly, the second ends the process at once."""
    loop, asked = asyncio.get_running_loop(), False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            os._exit(130)
        asked = True
        tasks.create_task(_leave(service, running, "the volunteer left"), name="leave")

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only process that is this node in this run. Raises SH-RUN-01 if another one is, or SH-DISK-02."""
    make_folder(folder)
    with held(folder) as mine:
        if not mine:
            raise ShoalError(
                "SH-RUN-01",
                f"another process takes part in this run from {folder.parent.parent}",
                "stop that one, or give this one a --home of its own",
            )
        yield


def _up_and_down(host: RealHost) -> tuple[int, int]:
    total = host.meter.total()
    return (
        total.control_up_bytes + total.bulk_up_bytes,
        total.control_down_bytes + total.bulk_down_bytes,
    )


# --- the trainer ---------------------------------------------------------------------------------------


def prepare_device(volunteer: Volunteer) -> torch.device:
    """The device, with the volunteer's limits on it. Raises SH-DEVICE-01 or SH-JOIN-10."""
    device = pick_device(volunteer.device)
    if volunteer.threads is not None:
        torch.set_num_threads(volunteer.threads)
    if volunteer.gpu_memory_bytes is not None:
        _limit_memory(device, volunteer.gpu_memory_bytes)
    return device


def _limit_memory(device: torch.device, size_bytes: int) -> None:
    if device.type != "cuda":
        raise ShoalError(
            "SH-JOIN-10",
            f"a limit on GPU memory was set, and the device is {device.type}",
            "leave out --gpu-memory, or choose --device cuda",
        )
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, size_bytes / total), device)


def torch_trainer(
    device: torch.device, *, allow_code: bool, open_data: Callable[..., Dataset] = open_dataset
) -> TrainerFactory:
    """Trainers for the recipes that need nothing but this package."""

    def make(recipe: Recipe, genesis: Genesis, read: Callable[[BlobId], bytes]) -> Trainer:
        if isinstance(recipe.inner, OwnInnerSpec):
            raise _own_program(recipe)
        trainer = TorchTrainer(
            recipe.model,
            recipe.inner,
            genesis.manifest,
            open_data(genesis.manifest, read),
            recipe.seed,
            device,
            fragments=recipe.strategy.schedule.fragments,
            allow_code=allow_code,
        )
        if trainer.layout != genesis.layout:
            raise other_tensors()
        return trainer

    return make


def needs_code(recipe: Recipe) -> str:
    """Why this recipe runs code of the organiser's, or "" if it does not."""
    model = recipe.model
    if model.kind == "transformers":
        if "auto_map" in model.config:
            return "its model comes with its own modelling code (auto_map)"
        if model.weights is not None:
            return f"its model is loaded from a folder, {model.weights}, that may hold code"
    return ""


def check_code(recipe: Recipe, *, allow_code: bool) -> None:
    """Raise SH-JOIN-09 where the organiser's code would run without leave."""
    if isinstance(recipe.model, OwnModelSpec) or isinstance(recipe.inner, OwnInnerSpec):
        raise _own_program(recipe)
    why = needs_code(recipe)
    if why and not allow_code:
        raise ShoalError(
            "SH-JOIN-09",
            f"recipe {recipe.name!r} runs code of the organiser's: {why}",
            "join with --allow-code only if you trust the organiser with this machine",
        )


def check_place(recipe: Recipe) -> None:
    """Raise SH-JOIN-12 where the members are hubs of regions, or of masked groups."""
    if recipe.strategy.region is not None:
        raise ShoalError(
            "SH-JOIN-12",
            f"run {recipe.name!r} is trained by regions ({recipe.strategy.preset})",
            "join one of them with its own ticket, begin one here (shoal hub TICKET), or lend this machine to them: "
            "shoal pool join",
        )
    if recipe.masking.on:
        raise ShoalError(
            "SH-JOIN-12",
            f"run {recipe.name!r} is trained by masked groups of {recipe.masking.members} members or more",
            "join one of them with its own ticket, or begin one here: shoal group TICKET",
        )


def _own_program(recipe: Recipe) -> ShoalError:
    return ShoalError(
        "SH-JOIN-09",
        f"run {recipe.name!r} is trained by a program of its participants' own, not by `shoal join`",
        "if you trust the organiser, get that program from them: it joins by itself",
    )
