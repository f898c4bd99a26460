"""`shoal hub TICKET`: begin a region of a run, and be its hub.

In flow the parent run's ticket; out flow the region's own ticket, a line for every round of either, and why it ended.
Invariant: the same command again, from the same home, goes on with the same region.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.home import Home, find_home, make_folder
from shoal.apps.join import quantity
from shoal.apps.log_lines import log_to_stderr
from shoal.apps.option_groups import JsonOption, say
from shoal.apps.ports import check_ports
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s
from shoal.wire.ticket import Ticket, read_ticket, show_ticket

if TYPE_CHECKING:
    from shoal.apps.joining import Volunteer
    from shoal.base.ids import NodeId
    from shoal.hub.region import Region
    from shoal.hub.service import HubService
    from shoal.node.options import NodeOptions, TrainerFactory
    from shoal.node.service import NodeService
    from shoal.node.session import Invitation
    from shoal.runlog.entries import Genesis
    from shoal.strategy.recipe import Recipe
    from shoal.wire.identity import Identity
    from shoal.worlds.real.host import RealHost

LOOK_EVERY_S = 0.25
END_S = 60.0
"""How long the region may take to save its last state and let its members go once the parent run is over."""
RETURN_S = 10.0
"""How long a member without a connection is waited for then: longer than it waits between two attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """Where a region is served, and what it waits for."""

    home: Home
    """Where the region's own key, log and blobs lie."""
    name: str
    min_nodes: int
    host: str
    control_port: int
    blob_port: int
    advertise: str | None
    as_json: bool = False


def hub(
    ticket: Annotated[str, typer.Argument(help="The parent run's ticket; its recipe has a strategy.region.")],
    home: Annotated[
        Path | None, typer.Option(help="Where keys, logs and blobs lie (default ~/.shoal).")
    ] = None,
    region_home: Annotated[
        Path | None, typer.Option(help="Where the region's own key, log and blobs lie, if not there.")
    ] = None,
    name: Annotated[str, typer.Option(help="The region's name (default: this machine's).")] = "",
    min_nodes: Annotated[int, typer.Option(min=1, help="The region's first round waits for so many.")] = 1,
    host: Annotated[
        str, typer.Option(help="Address for the region's nodes: 0.0.0.0 for other machines.")
    ] = "127.0.0.1",
    control_port: Annotated[int, typer.Option(help="Their control channels.", min=0, max=65535)] = 8471,
    blob_port: Annotated[
        int, typer.Option(help="Blobs, for those that find no peer.", min=0, max=65535)
    ] = 8472,
    advertise: Annotated[
        str | None, typer.Option(help="The name or address that nodes and other hubs should use.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Take connections from other hubs here (default: none)."),
    ] = None,
    patience: Annotated[
        str, typer.Option(help="How long to try a parent that does not answer yet, e.g. 10min.")
    ] = "30s",
    device: Annotated[
        str, typer.Option(help="Where the parent's states are validated: auto, cpu, cuda.")
    ] = "cpu",
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the organiser's code run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin a region of a run, and be its hub. Ctrl-C leaves; the same command resumes."""
    invitation = read_ticket(ticket)
    patience_s = quantity("--patience", patience, duration_s) or 0.0
    check_ports((host, control_port), (host, blob_port))
    # Torch takes a second to import: not for those who only ask for help or mistype.
    from shoal.apps.joining import Volunteer, prepare_device
    from shoal.worlds.real import loop

    options = HubOptions(
        home=find_home(region_home or home),
        name=name or platform.node() or "region",
        min_nodes=min_nodes,
        host=host,
        control_port=control_port,
        blob_port=blob_port,
        advertise=advertise,
        as_json=as_json,
    )
    volunteer = Volunteer(
        folder=find_home(home).node,
        name=options.name,
        device=device,
        port=port,
        advertise=advertise,
        allow_code=allow_code,
        patience_s=patience_s,
    )
    prepare_device(volunteer)
    if not as_json:
        print(f"connecting to {printable(', '.join(invitation.addresses))}", flush=True)
    log_to_stderr("WARNING")
    reason = loop.run(keep_region(options, volunteer, invitation))
    say({"ended": reason}, f"ended: {printable(reason)}", as_json)


async def keep_region(options: HubOptions, volunteer: Volunteer, ticket: Ticket) -> str:
    """Serve the region and take part in the parent run with it, until that ends or a signal comes; why it ended."""
    from shoal.apps.joining import prepare_device, take_part, torch_trainer
    from shoal.apps.unfounded import clear_unfounded
    from shoal.coordinator.service import CoordinatorService
    from shoal.hub.region import Region
    from shoal.worlds.real.disk import FileDisk
    from shoal.worlds.real.host import RealHost
    from shoal.worlds.real.keys import load_or_create_identity
    from shoal.worlds.real.locks import at_work, coordinating
    from shoal.worlds.real.sqlstore import SqlLogStore

    make_folder(options.home.coordinator)
    identity = load_or_create_identity(options.home.coordinator_key)
    clear_unfounded(options.home, options.home.store_url)
    with (
        coordinating(options.home.coordinator),
        contextlib.closing(SqlLogStore(options.home.store_url)) as store,
    ):
        async with RealHost(
            identity,
            FileDisk(options.home.coordinator),
            bind=options.host,
            control_port=options.control_port,
            peer_port=options.blob_port,
            advertise=options.advertise,
        ) as seat:
            region = Region(
                CoordinatorService(seat, identity, store),
                options.name,
                min_nodes=options.min_nodes,
                at_work=lambda: at_work(options.home.coordinator),
            )
            screen = HubScreen(region, allow_code=volunteer.allow_code, as_json=options.as_json)
            trainer = torch_trainer(prepare_device(volunteer), allow_code=volunteer.allow_code)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(region.service.serve(), name="the region's coordinator")
                reason = await take_part(
                    volunteer, ticket, trainer, screen.agree, screen.watch, make=partial(_make_hub, region)
                )
                await _end(region, screen.ended, reason)
                serving.cancel()
    return reason


def _make_hub(
    region: Region,
    host: RealHost,
    identity: Identity,
    invitation: Invitation,
    make_trainer: TrainerFactory,
    options: NodeOptions,
) -> HubService:
    from shoal.hub.service import HubService

    return HubService(host, identity, invitation, make_trainer, options, region)


async def _end(region: Region, ended: bool, reason: str) -> None:
    """The parent run is over: so is the region, once its last state is saved and its members know."""
    from shoal.coordinator.events import StopAsked

    service = region.service
    if not ended or region.run not in service.runs:
        return
    await service.post(region.run, StopAsked(f"the parent run has ended: {reason}"))
    served, began = service.runs[region.run], service.host.clock.now()
    unaware = {node for node, member in region.view.members.items() if member.present}
    here: set[NodeId] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while not served.machine.finished or here or unaware:
                service.changed.clear()
                await service.changed.wait()
                before, here = here, set(served.connections)
                unaware -= before - here  # A member that has heard of the end goes.
                if service.host.clock.now() - began > RETURN_S:
                    unaware &= here


class HubScreen:
    """What a hub's keeper sees: the region's ticket, then a line for every round of the parent or the region."""

    def __init__(self, region: Region, *, allow_code: bool, as_json: bool = False) -> None:
        self._region = region
        self._as_json = as_json
        self._allow_code = allow_code
        self._service: NodeService | None = None

    @property
    def ended(self) -> bool:
        """Whether the parent run is over."""
        return self._service is not None and self._service.machine.view.stopped is not None

    async def agree(self, recipe: Recipe, genesis: Genesis) -> bool:
        """Raises SH-RUN-01 where there are no regions, SH-JOIN-09 where the organiser's code would run."""
        from shoal.apps.joining import check_code

        if recipe.strategy.region is None:
            raise ShoalError(
                "SH-RUN-01", f"run {recipe.name!r} has no regions", "take part in it with `shoal join TICKET`"
            )
        check_code(recipe, allow_code=self._allow_code)
        return True

    async def watch(self, service: NodeService, host: RealHost) -> None:
        self._service = service
        region, told = self._region, (-1, -1)
        await region.opened.wait()
        token = await region.new_token()
        coordinator = region.service
        ticket = Ticket(coordinator.identity.node, (coordinator.address,), region.run, token)
        self._say(
            {"region": region.name, "run": region.run, "ticket": show_ticket(ticket), "ready": True},
            f"region {printable(region.name)} of run {service.invitation.run}\n"
            f"  run    {region.run}\n"
            f"  nodes  {coordinator.address}\n"
            f"  shoal join {show_ticket(ticket)}\n"
            "ready",
        )
        while True:
            now = (service.machine.view.round, region.view.round)
            if now != told:
                told = now
                self._say({"parent_round": now[0], "round": now[1]}, self._line(service))
            await asyncio.sleep(LOOK_EVERY_S)

    def _say(self, fields: dict[str, object], words: str) -> None:
        print(json.dumps(fields) if self._as_json else words, flush=True)

    def _line(self, service: NodeService) -> str:
        machine = self._region.service.runs[self._region.run].machine
        live = len(machine.seats.live(self._region.service.host.clock.now()))
        return printable(
            f"parent round {service.machine.view.round}: {service.machine.doing}; region round "
            f"{machine.view.round}, {live} nodes: {machine.waiting_for}",
            1000,
        )
