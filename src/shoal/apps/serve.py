"""`shoal serve`: a coordinator, its HTTP API and its event log in one process and one event loop.

In flow options; out flow a welcome with the lines to copy, then `ready`, then events on stderr until a signal.
Invariant: a secret is never printed but in a ticket, which is there to be handed on; SIGINT and SIGTERM end it
with everything durable, as any other end would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.home import Home, admin_token, find_home, make_folder
from shoal.apps.ports import check_ports, open_port
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s

if TYPE_CHECKING:
    from shoal.apps.api.desk import Desk

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a coordinator is to be run. Ports of 0 take any free one."""

    home: Home
    host: str = "127.0.0.1"
    api_host: str = "127.0.0.1"
    port: int = 8470
    control_port: int = 8471
    blob_port: int = 8472
    advertise: str | None = None
    store: str | None = None
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    token_expires_s: float | None = None


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
        typer.Option(help="Address of the HTTP API. It is not encrypted: leave it, or put TLS before it."),
    ] = "127.0.0.1",
    store: Annotated[
        str | None, typer.Option(help="sqlite:///PATH or postgresql://... for the logs.")
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
) -> None:
    """Run a coordinator: it keeps the logs, admits nodes and seals rounds."""
    from shoal.worlds.real.loop import run

    options = ServeOptions(
        home=find_home(home),
        host=host,
        api_host=api_host,
        port=port,
        control_port=control_port,
        blob_port=blob_port,
        advertise=advertise,
        store=store,
        recipe=recipe,
        settings=tuple(settings or ()),
        token_expires_s=_duration(token_expires),
    )
    _log_to_stderr()
    run(serve_until_signal(options))


def _duration(text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--token-expires") from None


def _say(line: str) -> None:
    print(line, flush=True)


async def serve_until_signal(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM. Raises `ShoalError` if it cannot start or go on."""
    asked = asyncio.Event()
    with _signals(asked):
        await serve_until(options, asked)


async def serve_until(options: ServeOptions, asked: asyncio.Event, say: Callable[[str], None] = _say) -> None:
    """Serve until `asked` to stop. The welcome goes through `say`, line by line, and ends with `ready`."""
    check_ports(
        (options.api_host, options.port),
        (options.host, options.control_port),
        (options.host, options.blob_port),
    )
    # Imported here: torch takes seconds, and `shoal serve --help` should not.
    from shoal.apps.api.desk import Desk
    from shoal.coordinator.service import CoordinatorService
    from shoal.worlds.real.disk import FileDisk
    from shoal.worlds.real.host import RealHost
    from shoal.worlds.real.keys import load_or_create_identity
    from shoal.worlds.real.sqlstore import SqlLogStore

    home = options.home
    make_folder(home.coordinator)
    identity = load_or_create_identity(home.coordinator_key)
    with (
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
        ) as host:
            service = CoordinatorService(host, identity, store)
            desk = Desk(service, home, expires_s=options.token_expires_s)
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

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(desk.service.serve(), name="coordinator")]
        await desk.service.ready.wait()
        if desk.service.broken and not desk.service.runs:
            raise next(error for _, error in sorted(desk.service.broken.items()))
        running.append(tasks.create_task(desk.diaries.keep(), name="diaries"))
        api = ApiServer(make_app(desk, admin_token(options.home)))
        answering = tasks.create_task(api.serve(sockets=[api_socket]), name="http api")
        address = f"http://{address_of(api_socket)}"
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
    service = desk.service
    say(f"shoal coordinator {service.identity.node}")
    say(f"  api    {address} (its pages: {address}/docs)")
    say(f"  token  in {options.home.admin_token}")
    say(f"  nodes  {service.address}")
    for name, served in sorted(service.runs.items()):
        if served.machine.view.stopped is None:
            say(f"  run    {name} {printable(served.machine.recipe.name)}")
            say(f"  shoal join {await desk.standing_ticket(name)}")
    for run, error in sorted(service.broken.items()):
        _report_broken(run, error, say)
    if not service.runs and not service.broken:
        say("  no runs yet: shoal run submit stdlib-gpt")
    say("ready")


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
        await desk.submit(recipe)


def _log_to_stderr() -> None:
    from shoal.apps.api.diary import FieldFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    root = logging.getLogger("shoal")
    root.handlers = [handler]
    root.setLevel(os.environ.get("SHOAL_LOG", "INFO").upper())
