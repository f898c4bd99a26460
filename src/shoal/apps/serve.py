"""`shoal serve`: a coordinator, its HTTP API and its event log in one process and one event loop.

In flow options; out flow a welcome with the lines to copy, then `ready`, then events on stderr until a signal.
Invariant: a secret is never printed but in a ticket, which is there to be handed on; SIGINT and SIGTERM end it
with everything durable, as any other end would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.apps.home import Home, find_home, make_folder, read_secret, write_secret
from shoal.apps.log_lines import log_to_stderr
from shoal.apps.ports import check_ports, open_port
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s
from shoal.wire.versions import HERE, Speaks, read_range
from shoal.worlds.real.locks import coordinating

if TYPE_CHECKING:
    from shoal.apps.api.desk import Desk
    from shoal.apps.api.tls import Certificate
    from shoal.coordinator.service import CoordinatorService

log = logging.getLogger("shoal.serve")
LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a coordinator is to be run. Ports of 0 take any free one."""

    home: Home
    host: str = "127.0.0.1"
    api_host: str = "127.0.0.1"
    api_cert: Path | None = None
    api_key: Path | None = None
    api_plain: bool = False
    stake: str = ""
    port: int = 8470
    control_port: int = 8471
    blob_port: int = 8472
    advertise: str | None = None
    store: str | None = None
    shared: bool = False
    standby_of: tuple[str, ...] = ()
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    token_expires_s: float | None = None
    matching: str = "stable"
    channels: int = 4096
    channels_per_address: int = 128
    as_json: bool = False
    speaks: Speaks = HERE


def serve(
    home: Annotated[Path | None, typer.Option(help="Where keys, logs and blobs lie.")] = None,
    host: Annotated[str, typer.Option(help="Address for nodes: 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP API.", min=0, max=65535)] = 8470,
    control_port: Annotated[int, typer.Option(help="Nodes' control channels.", min=0, max=65535)] = 8471,
    blob_port: Annotated[
        int, typer.Option(help="Blobs, for nodes that find no peer.", min=0, max=65535)
    ] = 8472,
    advertise: Annotated[str | None, typer.Option(help="The name or address nodes should use.")] = None,
    api_host: Annotated[
        str,
        typer.Option(help="Address of the HTTP API; with TLS unless only this machine can reach it."),
    ] = "127.0.0.1",
    api_cert: Annotated[
        Path | None, typer.Option(help="Its certificate, a PEM file; one is made if left out.")
    ] = None,
    api_key: Annotated[Path | None, typer.Option(help="The certificate's key, a PEM file.")] = None,
    api_plain: Annotated[
        bool,
        typer.Option("--api-plain", help="No TLS there: a proxy or a container's port sees to that."),
    ] = False,
    stake: Annotated[
        str, typer.Option(help="module:function that is asked of every newcomer; see docs/strangers.md.")
    ] = "",
    store: Annotated[
        str | None, typer.Option(help="sqlite:///PATH or postgresql://... for the logs.")
    ] = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Other coordinators share the store: lead, or stand by until the leader falls silent. "
            "Always so with PostgreSQL. They need the same key: copy HOME/coordinator/key.",
        ),
    ] = False,
    standby_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Another coordinator (its control address) whose runs to copy and take over, with a store of one's "
            "own: runs whose recipe names this one in membership.coordinators. Repeatable; the same key is needed.",
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe to submit, unless a run of it is on already.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field of --recipe.")
    ] = None,
    token_expires: Annotated[
        str | None, typer.Option(help="How long new runs' tickets admit nodes, e.g. 7d; default: for ever.")
    ] = None,
    matching: Annotated[
        Literal["stable", "priority", "capability"],
        typer.Option(help="How machines of the pool are given to runs; see docs/network.md."),
    ] = "stable",
    channels: Annotated[int, typer.Option(min=1, help="How many nodes may be connected at once.")] = 4096,
    channels_per_address: Annotated[
        int, typer.Option(min=1, help="The same from one address; raise it for many behind one router.")
    ] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Say what is served as one JSON object.")] = False,
    wire_versions: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Speak only these versions of the wire: to try an upgrade."),
    ] = None,
) -> None:
    """Run a coordinator: it keeps the logs, admits nodes and seals rounds."""
    from shoal.worlds.real.descriptors import allow_files
    from shoal.worlds.real.loop import run
    from shoal.worlds.real.memory import collect_seldom

    allow_files(2 * channels)
    collect_seldom()
    options = ServeOptions(
        home=find_home(home),
        host=host,
        api_host=api_host,
        api_cert=api_cert,
        api_key=api_key,
        api_plain=api_plain,
        stake=stake,
        port=port,
        control_port=control_port,
        blob_port=blob_port,
        advertise=advertise,
        store=store,
        shared=shared or (store or "").startswith("postgres"),
        standby_of=tuple(standby_of or ()),
        recipe=recipe,
        settings=tuple(settings or ()),
        token_expires_s=_duration(token_expires),
        matching=matching,
        channels=channels,
        channels_per_address=channels_per_address,
        as_json=as_json,
        speaks=_speaks(wire_versions),
    )
    log_to_stderr("INFO")
    run(serve_until_signal(options))


def _duration(text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--token-expires") from None


def _speaks(text: str | None) -> Speaks:
    try:
        return HERE if text is None else read_range(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wire-versions") from None


def _say(line: str) -> None:
    print(line, flush=True)


async def serve_until_signal(options: ServeOptions) -> None:
    """Serve, or stand by, until SIGINT or SIGTERM. Raises `ShoalError` if it cannot start or go on."""
    asked = asyncio.Event()
    with _signals(asked):
        while not asked.is_set():
            try:
                await serve_until(options, asked)
            except* ShoalError as group:
                if not _is_deposed(group):
                    raise
                log.warning("deposed", extra={"cause": str(_first(group))})


def _is_deposed(group: BaseExceptionGroup[ShoalError]) -> bool:
    """Whether all that went wrong is that another coordinator has taken over: this one stands by from now on."""
    return group.split(lambda error: isinstance(error, ShoalError) and error.code == "SH-LEAD-01")[1] is None


def _first(group: BaseExceptionGroup[ShoalError]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def serve_until(options: ServeOptions, asked: asyncio.Event, say: Callable[[str], None] = _say) -> None:
    """Serve until `asked` to stop. The welcome goes through `say`, line by line, and ends with `ready`."""
    check_ports(
        (options.api_host, options.port),
        (options.host, options.control_port),
        (options.host, options.blob_port),
    )
    # Imported here: torch takes seconds, and `shoal serve --help` should not.
    from shoal.apps.api.desk import Desk
    from shoal.apps.staking import find_stake
    from shoal.apps.unfounded import clear_unfounded
    from shoal.coordinator.leading import Lead
    from shoal.coordinator.service import CoordinatorService
    from shoal.worlds.real.channels import ChannelLimits
    from shoal.worlds.real.disk import FileDisk
    from shoal.worlds.real.host import RealHost
    from shoal.worlds.real.keys import load_or_create_identity
    from shoal.worlds.real.sqlstore import SqlLogStore

    home = options.home
    make_folder(home.coordinator)
    identity = load_or_create_identity(home.coordinator_key)
    clear_unfounded(home, options.store or home.store_url)
    with (
        coordinating(home.coordinator),
        contextlib.closing(SqlLogStore(options.store or home.store_url)) as store,
        open_port(options.api_host, options.port) as api_socket,
    ):
        async with RealHost(
            identity,
            FileDisk(home.coordinator),
            bind=options.host,
            control_port=options.control_port,
            peer_port=options.blob_port,
            advertise=options.advertise,
            channel_limits=ChannelLimits(
                channels=options.channels, channels_per_remote=options.channels_per_address
            ),
        ) as host:
            lead = Lead(store, _name(home)) if options.shared else None
            service = CoordinatorService(
                host, identity, store, lead, find_stake(options.stake), options.standby_of, options.speaks
            )
            desk = Desk(service, home, expires_s=options.token_expires_s, matching=options.matching)
            await _serve_parts(desk, options, api_socket, asked, say)


async def _serve_parts(
    desk: Desk,
    options: ServeOptions,
    api_socket: socket.socket,
    asked: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Coordinator, diaries and API side by side; the failure of one ends all."""
    from shoal.apps.api.app import make_app
    from shoal.apps.api.server import ApiServer, address_of
    from shoal.apps.api.tokens import load_tokens
    from shoal.apps.api.uploads import Uploads
    from shoal.apps.scrubbing import scrub_coordinator
    from shoal.apps.tracing import CoordinatorTrace, spans_from_environment

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(desk.service.serve(), name="coordinator")]
        await _stand_by(desk.service, asked, say, options, api_socket)
        if asked.is_set():
            running[0].cancel()
            return
        if desk.service.broken and not desk.service.runs and not desk.service.elections.contests:
            raise next(error for _, error in sorted(desk.service.broken.items()))
        running.append(tasks.create_task(desk.diaries.keep(), name="diaries"))
        running.append(tasks.create_task(scrub_coordinator(desk.service), name="scrub"))
        await desk.diaries.caught_up.wait()
        if (spans := spans_from_environment(desk.service.identity.node)) is not None:
            desk.diaries.after.append(CoordinatorTrace(desk.diaries, spans).look)
        uploads = Uploads(options.home.coordinator / "datasets", options.home.coordinator / "images")
        own = _certificate(options)
        api = ApiServer(make_app(desk, load_tokens(options.home), uploads), own)
        answering = tasks.create_task(api.serve(sockets=[api_socket]), name="http api")
        address = f"{'https' if own else 'http'}://{address_of(api_socket)}"
        options.home.api_address.write_text(address + "\n", "utf-8")
        if options.recipe is not None:
            await _submit(desk, options)
        await _welcome(desk, options, address, say)
        await asked.wait()
        log.info("stopping")
        api.should_exit = True
        await answering
        for task in running:
            task.cancel()


def _certificate(options: ServeOptions) -> Certificate | None:
    """What the API shows; None where only this machine can reach it and nobody asked for TLS."""
    from shoal.apps.api.tls import certificate_for, leaves_machine

    if options.api_plain or (not leaves_machine(options.api_host) and options.api_cert is None):
        return None
    names = (options.advertise or "", options.api_host)
    return certificate_for(options.home.coordinator, names, options.api_cert, options.api_key)


async def _stand_by(
    service: CoordinatorService,
    asked: asyncio.Event,
    say: Callable[[str], None],
    options: ServeOptions,
    api_socket: socket.socket,
) -> None:
    """Wait until the coordinator serves, or is asked to stop; say so if another one leads, over HTTP too."""
    from shoal.apps.api.server import ApiServer
    from shoal.apps.api.standing import make_standing_app

    told = ""
    async with asyncio.TaskGroup() as tasks:
        api: ApiServer | None = None
        while not service.ready.is_set() and not asked.is_set():
            if (leader := _leader_of(service)) not in ("", told, service.address):
                told = leader
                say(f"standing by: the coordinator at {printable(told)} leads")
                if api is None:
                    api = ApiServer(make_standing_app(lambda: _leader_of(service)), _certificate(options))
                    # On a copy, which the server closes: the port stays this coordinator's.
                    tasks.create_task(api.serve(sockets=[api_socket.dup()]), name="http api, standing by")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.ready.wait(), LOOK_S)
        if api is not None:
            api.should_exit = True


def _leader_of(service: CoordinatorService) -> str:
    """Where the coordinator is that leads this one's store; empty if none is known to."""
    return service.lead.standing.leader.address if service.lead is not None else ""


def _name(home: Home) -> str:
    """This home's name among coordinators, drawn once."""
    path = home.coordinator_name
    name = read_secret(path)
    if name is None:
        name = secrets.token_hex(16)
        write_secret(path, name)
    return name


@contextlib.contextmanager
def _signals(asked: asyncio.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for an end; a second one is the system's again."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def ask() -> None:
        asked.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _welcome(desk: Desk, options: ServeOptions, address: str, say: Callable[[str], None]) -> None:
    if options.as_json:
        say(json.dumps(await _welcome_fields(desk, options, address)))
        return
    service = desk.service
    say(f"shoal coordinator {service.identity.node}")
    say(f"  api    {address} (the dashboard, too)")
    say(f"  token  in {options.home.admin_token}")
    say(f"  nodes  {service.address}")
    for name, served in sorted(service.runs.items()):
        if served.machine.view.stopped is None:
            say(f"  run    {name} {printable(served.machine.recipe.name)}")
            say(f"  shoal join {await desk.standing_ticket(name)}")
    for run, error in sorted(service.broken.items()):
        _report_broken(run, error, say)
    contests = [contest for _, contest in sorted(service.elections.contests.items()) if not contest.served]
    for contest in contests:
        say(f"  run    {contest.run} standing by, one of {', '.join(map(printable, contest.coordinators))}")
    if options.standby_of and not contests:
        say(f"  standing by for the runs of {', '.join(map(printable, options.standby_of))}")
    elif not service.runs and not service.broken and not contests:
        say("  no runs yet: shoal run submit stdlib-gpt")
    say("ready")


async def _welcome_fields(desk: Desk, options: ServeOptions, address: str) -> dict[str, object]:
    service = desk.service
    on = [(name, served) for name, served in sorted(service.runs.items()) if not served.machine.view.stopped]
    return {
        "ready": True,
        "coordinator": service.identity.node,
        "api": address,
        "token_file": str(options.home.admin_token),
        "nodes": service.address,
        "runs": [
            {"run": name, "name": served.machine.recipe.name, "ticket": await desk.standing_ticket(name)}
            for name, served in on
        ],
        "not_served": {run: error.code for run, error in sorted(service.broken.items())},
    }


def _report_broken(run: str, error: ShoalError, say: Callable[[str], None]) -> None:
    """A run that is not served must not go unnoticed, though the others are."""
    log.error("run_not_served", extra={"run": run[:12], "code": error.code, "cause": error.cause})
    say(f"  run    {run} IS NOT SERVED")
    say(f"    error {error.code}")
    say(f"    what: {printable(error.cause, 1000)}")
    say(f"    next: {printable(error.next_step, 1000)}")


async def _submit(desk: Desk, options: ServeOptions) -> None:
    from shoal.apps.recipes import find_recipe
    from shoal.strategy.recipe import load_recipe

    recipe = load_recipe(find_recipe(str(options.recipe)), overrides=options.settings)
    # So that a service manager, or a person, may start the same command again after a crash.
    if desk.find_same(recipe) is None:
        print(f"preparing {printable(recipe.name)} ...", file=sys.stderr, flush=True)
        if recipe.membership.coordinators:
            words = ", ".join(map(printable, recipe.membership.coordinators))
            print(
                f"it begins once a majority of its coordinators answers: {words}", file=sys.stderr, flush=True
            )
        await desk.submit(recipe)
