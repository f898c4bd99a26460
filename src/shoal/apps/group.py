"""`shoal group TICKET`: begin a masked group of a run, be its hub, and print the group's own ticket.

In flow the run's ticket; out flow the group's, a line for every change, and why it ended. Invariant: the same command
again, from the same home, goes on with the same group: its members' ticket stays good.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import secrets
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.home import Home, find_home, read_secret, write_secret
from shoal.apps.join import quantity
from shoal.apps.log_lines import log_to_stderr
from shoal.apps.option_groups import JsonOption, say
from shoal.apps.ports import check_ports
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s
from shoal.wire.ticket import Ticket, read_ticket, show_ticket

if TYPE_CHECKING:
    from shoal.apps.joining import Agree, Volunteer
    from shoal.group.member import GroupMember
    from shoal.group.service import GroupService
    from shoal.node.options import NodeOptions, TrainerFactory
    from shoal.node.service import NodeService
    from shoal.node.session import Invitation
    from shoal.runlog.entries import Genesis
    from shoal.strategy.recipe import Recipe
    from shoal.wire.identity import Identity
    from shoal.worlds.real.host import RealHost

LOOK_EVERY_S = 0.25


def group(
    ticket: Annotated[str, typer.Argument(help="The run's ticket; its recipe has masking.members.")],
    home: Annotated[Path | None, typer.Option(help="Where key and blobs lie (default ~/.shoal).")] = None,
    name: Annotated[str, typer.Option(help="The group's name (default: this machine's).")] = "",
    host: Annotated[
        str, typer.Option(help="Address for the members: 0.0.0.0 for other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where members reach the hub.")] = 8473,
    advertise: Annotated[
        str | None, typer.Option(help="The name or address that members should use.")
    ] = None,
    patience: Annotated[
        str, typer.Option(help="How long to try a coordinator that does not answer yet, e.g. 10min.")
    ] = "30s",
    device: Annotated[str, typer.Option(help="Where states are validated: auto, cpu, cuda.")] = "cpu",
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the organiser's code run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin a masked group of a run, and be its hub. Ctrl-C leaves; the same command resumes."""
    invitation = read_ticket(ticket)
    patience_s = quantity("--patience", patience, duration_s) or 0.0
    check_ports((host, port))
    # Torch takes a second to import: not for those who only ask for help or mistype.
    from shoal.apps.joining import Volunteer, prepare_device, take_part, torch_trainer
    from shoal.worlds.real import loop

    folder = find_home(home)
    volunteer = Volunteer(
        folder=folder.node,
        name=name or platform.node() or "group",
        device=device,
        port=port,
        bind=host,
        advertise=advertise,
        allow_code=allow_code,
        patience_s=patience_s,
    )
    token = group_token(folder, invitation)
    screen = GroupScreen(volunteer, token, as_json=as_json)
    trainer = torch_trainer(prepare_device(volunteer), allow_code=allow_code)
    if not as_json:
        print(f"connecting to {printable(', '.join(invitation.addresses))}", flush=True)
    make = partial(_make_hub, token)
    log_to_stderr("WARNING")
    reason = loop.run(take_part(volunteer, invitation, trainer, screen.agree, screen.watch, make=make))
    say({"ended": reason}, f"ended: {printable(reason)}", as_json)


def group_token(home: Home, ticket: Ticket) -> str:
    """What admits members to this home's group of a run; made on first use."""
    from shoal.group.messages import TOKEN_PREFIX

    path = home.node / "groups" / f"{ticket.run}-token"
    known = read_secret(path)
    if known is None:
        known = f"{TOKEN_PREFIX}{secrets.token_urlsafe(24)}"
        write_secret(path, known)
    return known


def _make_hub(
    token: str,
    host: RealHost,
    identity: Identity,
    invitation: Invitation,
    make_trainer: TrainerFactory,
    options: NodeOptions,
) -> GroupService:
    from shoal.group.service import GroupService

    return GroupService(host, identity, invitation, make_trainer, options, token)


class GroupScreen:
    """What a group's keeper sees: its ticket, then a line for every change."""

    def __init__(self, volunteer: Volunteer, token: str, *, as_json: bool = False) -> None:
        self._volunteer, self._token, self._as_json = volunteer, token, as_json

    async def agree(self, recipe: Recipe, genesis: Genesis) -> bool:
        """Raises SH-RUN-01 where there are no groups, SH-JOIN-09 where the organiser's code would run."""
        from shoal.apps.joining import check_code

        if not recipe.masking.on:
            raise ShoalError(
                "SH-RUN-01",
                f"run {recipe.name!r} has no masked groups",
                "take part in it with `shoal join TICKET`, or give its recipe masking.members",
            )
        check_code(recipe, allow_code=self._volunteer.allow_code)
        return True

    async def watch(self, service: NodeService, host: RealHost) -> None:
        from shoal.group.service import GroupService

        assert isinstance(service, GroupService)
        await service.opened.wait()
        ticket = Ticket(service.identity.node, (service.address,), service.invitation.run, self._token)
        run, shown = service.invitation.run, show_ticket(ticket)
        words = f"group {printable(self._volunteer.name)} of run {run}\n  members  {service.address}\n"
        words += f"  shoal join {shown}\nready"
        self._say({"run": run, "address": service.address, "ticket": shown}, words)
        told = ""
        while True:
            failed = f"; the last round failed: {service.failure}" if service.failure else ""
            line = f"round {service.machine.view.round}: {service.machine.doing}{failed}"
            if line != told:
                told = line
                round_number = service.machine.view.round
                self._say({"round": round_number, "doing": line}, printable(line, 1000))
            await asyncio.sleep(LOOK_EVERY_S)

    def _say(self, fields: dict[str, object], words: str) -> None:
        print(json.dumps(fields) if self._as_json else words, flush=True)


# --- members ---------------------------------------------------------------------------------------------


def leads_to_group(ticket: Ticket) -> bool:
    """Whether this ticket is a masked group's."""
    from shoal.group.messages import TOKEN_PREFIX

    return ticket.token.startswith(TOKEN_PREFIX)


async def take_part_masked(
    volunteer: Volunteer, ticket: Ticket, make_trainer: TrainerFactory, agree: Agree
) -> str:
    """Be a member of a group until the run ends or a signal says to leave; why it ended."""
    from shoal.apps.idle import IdleWatch
    from shoal.apps.joining import alone, host_for
    from shoal.group.member import GroupMember
    from shoal.node.options import NodeOptions
    from shoal.node.session import Invitation
    from shoal.worlds.real.keys import load_or_create_identity

    identity = load_or_create_identity(volunteer.folder / "key")
    with alone(volunteer.folder / "runs" / ticket.run):
        async with host_for(volunteer, identity) as host:
            options = NodeOptions(
                give_up_s=volunteer.patience_s,
                agree=agree,
                may_train=IdleWatch().reason if volunteer.when_idle else lambda: "",
                step_seconds=host.pacer.step_s if host.pacer else 0.0,
                device=volunteer.device,
            )
            invitation = Invitation.from_ticket(ticket, volunteer.name)
            member = GroupMember(host, identity, invitation, make_trainer, options)
            return await _accompany(member)


async def _accompany(member: GroupMember) -> str:
    """Run a member and say what it does; the first signal leaves."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, member.leave)
    saying = asyncio.create_task(_say(member), name="say what the member does")
    try:
        return await member.run()
    finally:
        saying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await saying
        for number in numbers:
            loop.remove_signal_handler(number)


async def _say(member: GroupMember) -> None:
    told = ""
    while True:
        line = f"{member.rounds} sums so far: {member.doing}"
        if line != told:
            told = line
            print(printable(line, 1000), flush=True)
        await asyncio.sleep(LOOK_EVERY_S)
