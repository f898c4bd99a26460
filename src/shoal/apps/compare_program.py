"""What runs inside a lab's hosts: one coordinator, and nodes that take part in one run after another.

    python -m shoal.apps.compare_program coordinator FOLDER
    python -m shoal.apps.compare_program node FOLDER

In flow files in a folder that all hosts share (recipes, tickets, the word that a run is over); out flow curves.
Invariant: a program is started once for all runs, since starting seventeen interpreters takes longer than a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from shoal.apps.bench.converge.corpus import read_corpus
from shoal.apps.compare_curves import CurveReader, Prices
from shoal.apps.compare_simulated import trainer_of
from shoal.apps.joining import torch_trainer
from shoal.apps.paced import PacedHost
from shoal.base.ids import RunId
from shoal.coordinator.founding import found_with
from shoal.coordinator.service import CoordinatorService
from shoal.lab.pace import pacer
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.chain import read_link
from shoal.runlog.files import FileLogStore
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.ticket import Ticket, read_ticket, show_ticket
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.keys import load_or_create_identity

LOOK_S = 0.2
LEAVE_S = 5.0


def write(path: Path, text: str) -> None:
    """All at once, so that nobody reads half of it."""
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(path)


async def appears(path: Path, end: Path | None = None) -> str | None:
    """A file's text, once it is there; None if the other one came before it. (Nobody can tell a process of another
    host but by a file: hence looking, again and again.)"""
    while (text := _text_of(path)) is None:
        if end is not None and _text_of(end) is not None:
            return None
        await asyncio.sleep(LOOK_S)
    return text


def _text_of(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


# --- the coordinator -------------------------------------------------------------------------------------


async def coordinate(folder: Path) -> None:
    home = folder / "coordinator"
    identity = load_or_create_identity(home / "key")
    host = RealHost(
        identity, FileDisk(home), bind=os.environ["SHOAL_LAB_ADDRESS"], control_port=0, peer_port=0
    )
    async with host, asyncio.TaskGroup() as tasks:
        store = FileLogStore(FileDisk(home), lambda point: None)
        service = CoordinatorService(host, identity, store)
        serving = tasks.create_task(service.serve(), name="coordinator")
        await service.ready.wait()
        write(folder / "ready-coordinator", "")
        number = 0
        while (asked := json.loads(await appears(folder / f"run-{number}.json") or "null")) is not None:
            await _lead(folder, number, asked, service)
            number += 1
        serving.cancel()


async def _lead(folder: Path, number: int, asked: dict[str, object], service: CoordinatorService) -> None:
    """One run, until it is as good as asked or its time is over; its curve."""
    recipe, host = recipe_in_log(json.dumps(asked["recipe"])), service.host
    founded = await host.work(lambda: found_with(service, recipe))
    await service.open_run(founded.run)
    ticket = Ticket(service.identity.node, (service.address,), founded.run, founded.token)
    write(folder / f"ticket-{number}", show_ticket(ticket))
    trainer = await host.work(lambda: trainer_of(recipe, read_corpus(recipe.data)))
    first_loss = await host.work(lambda: trainer.evaluate(recipe.evaluation.batches))
    reader = CurveReader(speeds=float(str(asked["speeds"])), prices=Prices(), first_loss=first_loss)
    most_s, until, read = float(str(asked["most_s"])), asked["until_loss"], 0
    least = -math.inf if until is None else float(str(until))
    while True:
        await asyncio.sleep(LOOK_S)
        read = _read(service, founded.run, reader, read)
        if reader.began_ms is not None and not (folder / f"began-{number}").exists():
            write(folder / f"began-{number}", "")
        machine = service.runs[founded.run].machine
        passed_s = reader.seconds(host.clock.wall_ms()) if reader.began_ms is not None else 0.0
        if machine.view.stopped is not None or passed_s >= most_s or reader.loss <= least:
            break
    curve = reader.curve(str(asked["name"]), sent_bytes=0, utilisation=0.0, ended=machine.view.stopped or "")
    write(folder / f"curve-{number}.json", json.dumps(asdict(curve)))
    await appears(folder / f"over-{number}")


def _read(service: CoordinatorService, run: RunId, reader: CurveReader, start: int) -> int:
    for encoded in service.store.read(run, start, service.runs[run].written):
        reader.take(read_link(encoded).entry, 0)
        start += 1
    return start


# --- a node ----------------------------------------------------------------------------------------------


async def take_part(folder: Path) -> None:
    name = os.environ["SHOAL_LAB_HOST"]
    home = folder / name
    identity = load_or_create_identity(home / "key")
    write(folder / f"ready-{name}", "")
    paced = pacer()  # One for all runs: its record is the process's, and another would begin it anew.
    number = 0
    while True:
        told = await appears(folder / f"ticket-{number}", folder / "end")
        if told is None:
            return
        host = PacedHost(
            identity, FileDisk(home), bind=os.environ["SHOAL_LAB_ADDRESS"], peer_port=0, threads=2
        )
        host.pacer = paced
        async with host:
            options = NodeOptions(
                give_up_s=600.0,
                traffic=partial(_moved, host),
                step_seconds=host.pacer.step_s if host.pacer else 0.0,
            )
            invitation = Invitation.from_ticket(read_ticket(told), name)
            trainer = torch_trainer(torch.device("cpu"), allow_code=False)
            service = NodeService(host, identity, invitation, trainer, options)
            await _until_over(service, folder / f"over-{number}")
        number += 1


def _moved(host: PacedHost) -> tuple[int, int]:
    total = host.meter.total()
    return total.bulk_up_bytes, total.bulk_down_bytes


async def _until_over(service: NodeService, over: Path) -> None:
    """Run the node until its run ends, or the word comes that it does."""
    running = asyncio.create_task(service.run(), name="node")
    word = asyncio.create_task(appears(over), name="over")
    await asyncio.wait({running, word}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await service.leave("the comparison goes on")
                await running
    running.cancel()
    await asyncio.wait({running})
    await word


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run({"coordinator": coordinate, "node": take_part}[sys.argv[1]](Path(sys.argv[2])))
