"""`shoal join TICKET`: lend this machine to a run.

In flow a ticket and the volunteer's limits; out flow a few lines on what will run, a live line on how it goes,
and why it ended. Invariant: the same command again resumes, with the same key and from what is on disk.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shoal.apps.home import find_home
from shoal.apps.log_lines import log_to_stderr
from shoal.apps.option_groups import JsonOption, say
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s, rate_bytes_s, size_bytes
from shoal.credit.spec import read_credits
from shoal.wire.ticket import read_ticket
from shoal.wire.versions import HERE, read_range

if TYPE_CHECKING:
    from shoal.apps.joining import Make
    from shoal.data.dataset import Dataset
    from shoal.worlds.real.limits import Limits

T = TypeVar("T")


def join(
    ticket: Annotated[str, typer.Argument(help="The line that `shoal serve` or `shoal run submit` printed.")],
    home: Annotated[Path | None, typer.Option(help="Where keys and data live (default ~/.shoal).")] = None,
    name: Annotated[str, typer.Option(help="What others see of you.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Processor threads to use.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="At most this much, e.g. 4GiB.")] = None,
    max_up: Annotated[
        str | None,
        typer.Option(
            help="Upload updates and data at most so fast, e.g. 10Mbit; messages (some kB/s) go beside."
        ),
    ] = None,
    max_down: Annotated[str | None, typer.Option(help="The same for downloads, e.g. 50Mbit.")] = None,
    monthly: Annotated[
        str | None,
        typer.Option(help="Everything, both ways, in a calendar month, e.g. 100GB; TLS adds some per cent."),
    ] = None,
    when_idle: Annotated[bool, typer.Option("--when-idle", help="Train only when nobody uses it.")] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Take connections from peers here (default: none).")
    ] = None,
    bind: Annotated[str, typer.Option(help="Address to take them on.")] = "0.0.0.0",  # noqa: S104
    advertise: Annotated[str | None, typer.Option(help="Address that peers should use.")] = None,
    patience: Annotated[
        str, typer.Option(help="How long to try a coordinator that does not answer yet, e.g. 10min.")
    ] = "30s",
    min_price: Annotated[
        str,
        typer.Option(help="Train for no less: credits for a sample (or token) of work, e.g. 0.002."),
    ] = "0",
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the organiser's code run.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before starting.")] = False,
    wire_versions: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="Speak only these versions of the wire: to try an upgrade."),
    ] = None,
    adversary: Annotated[
        str, typer.Option(help="Lie on purpose, to test a run of your own; see docs/strangers.md.")
    ] = "",
    unsafe_adversary: Annotated[
        bool, typer.Option("--unsafe-adversary", help="Yes, attack this run: --adversary needs this too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Lend this machine to a run. Ctrl-C leaves; the same command resumes."""
    invitation = read_ticket(ticket)
    limits = _limits(max_up, max_down, monthly)
    memory = quantity("--gpu-memory", gpu_memory, size_bytes)
    patience_s = quantity("--patience", patience, duration_s) or 0.0
    min_price_micro = quantity("--min-price", min_price, read_credits) or 0
    speaks = quantity("--wire-versions", wire_versions, read_range) or HERE
    # Torch takes a second to import: not for those who only ask for help or mistype.
    from shoal.apps.group import leads_to_group, take_part_masked
    from shoal.apps.join_screen import Screen
    from shoal.apps.joining import Volunteer, prepare_device, take_part, torch_trainer
    from shoal.worlds.real import loop

    volunteer = Volunteer(
        folder=find_home(home).node,
        name=name or platform.node(),
        device=device,
        threads=threads,
        gpu_memory_bytes=memory,
        limits=limits,
        when_idle=when_idle,
        port=port,
        bind=bind,
        advertise=advertise,
        allow_code=allow_code,
        patience_s=patience_s,
        min_price_micro=min_price_micro,
        speaks=speaks,
    )
    torch_device = prepare_device(volunteer)
    volunteer = replace(volunteer, device=str(torch_device))
    masked = leads_to_group(invitation)
    asks = not yes and not as_json and sys.stdin.isatty()
    screen = Screen(volunteer, torch_device, invitation.run, ask=asks, as_json=as_json, masked=masked)
    make, open_data = _part(adversary, unsafe_adversary)
    trainer = torch_trainer(torch_device, allow_code=allow_code, open_data=open_data)
    if not as_json:
        print(f"connecting to {printable(', '.join(invitation.addresses))}", flush=True)
    if masked:
        part = take_part_masked(volunteer, invitation, trainer, screen.agree)
    else:
        part = take_part(volunteer, invitation, trainer, screen.agree, screen.watch, make=make)
    log_to_stderr("WARNING")
    reason = loop.run(part)
    say({"ended": reason}, f"ended: {printable(reason)}", as_json)


def _part(adversary: str, unsafe: bool) -> tuple[Make, Callable[..., Dataset]]:
    """What takes part: an honest node, unless somebody insists on another."""
    from shoal.data.dataset import open_dataset
    from shoal.node.service import NodeService

    if not adversary and not unsafe:
        return NodeService, open_dataset
    if not (adversary and unsafe):
        raise typer.BadParameter(
            "a node lies only with both --adversary NAME and --unsafe-adversary", param_hint="--adversary"
        )
    from shoal.apps.hostile import data_for, hostile

    print(f"UNSAFE: this node attacks the run as {printable(adversary)!r}", flush=True)
    return hostile(adversary), data_for(adversary)


def _limits(max_up: str | None, max_down: str | None, monthly: str | None) -> Limits:
    from shoal.worlds.real.limits import Limits

    limits = Limits(
        max_up_bytes_s=quantity("--max-up", max_up, rate_bytes_s),
        max_down_bytes_s=quantity("--max-down", max_down, rate_bytes_s),
        month_bytes=quantity("--monthly", monthly, size_bytes),
    )
    if 0 in (limits.max_up_bytes_s, limits.max_down_bytes_s, limits.month_bytes):
        raise ShoalError(
            "SH-JOIN-10", "a limit of zero leaves nothing to take part with", "raise it, or leave it out"
        )
    return limits


def quantity(option: str, text: str | None, read: Callable[[str], T]) -> T | None:
    """An option's value with its unit; None if it was not given."""
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
