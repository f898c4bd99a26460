"""`shoal pool`: lend this machine to a coordinator's runs, whichever it suits, and see who is lent.

In flow a coordinator's address and a token of scope `lend`; out flows what `lending` has on for the run that the
coordinator names. Invariant: what a machine is and may do is said here, once, and told with every offer.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Annotated

import typer

from shoal.apps.home import find_home
from shoal.apps.hub_address import read_hub_address
from shoal.apps.join import quantity
from shoal.apps.lending import Lent, Offer
from shoal.apps.option_groups import grouped
from shoal.apps.printable import printable
from shoal.apps.runs import Asked
from shoal.base.units import rate_bytes_s
from shoal.credit.spec import read_credits

MOST_LABEL = 64
app = typer.Typer(help="Lend this machine to a pool of runs.", no_args_is_help=True)


@app.command("join")
@grouped
def join(
    join_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="For `shoal join`, as --port 4001.")
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(help="A run that it would rather work for; repeatable, dearest first.")
    ] = None,
    up: Annotated[str | None, typer.Option(help="What its uplink gives, e.g. 20Mbit.")] = None,
    min_price: Annotated[str, typer.Option(help="Work for no less: credits for a sample or token.")] = "0",
    hub_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Others reach it there and at the next two ports: it may be a hub."
        ),
    ] = None,
    region: Annotated[
        str, typer.Option(help="Those who name the same are one region, whatever their round trips.")
    ] = "",
    *,
    there: Asked,
) -> None:
    """Work for the run that the coordinator names, until Ctrl-C."""
    from shoal.base.memory import free_memory_bytes
    from shoal.worlds.real.keys import load_or_create_identity

    hub = read_hub_address(hub_address) if hub_address else None
    if len(region) > MOST_LABEL:
        raise typer.BadParameter(f"a name has {MOST_LABEL} letters at most", param_hint="--region")
    home = find_home(there.home)
    home.node.mkdir(parents=True, exist_ok=True)
    offer = Offer(
        speed=measured_speed(),
        memory_bytes=free_memory_bytes(),
        up_bytes_s=quantity("--up", up, rate_bytes_s) or 0.0,
        least_pay_micro=quantity("--min-price", min_price, read_credits) or 0,
        prefers=tuple(prefer or ()),
        label=region,
        hub=hub,
    )
    words = ["--home", str(home.root), "--yes", "--min-price", min_price, *(join_options or ())]
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    with there.client() as api:
        Lent(api, load_or_create_identity(home.node_key), offer, home, words, asked).run()


@app.command("list")
@grouped
def list_members(there: Asked) -> None:
    """Who is lent, and to which run."""
    from shoal.apps.api.client import as_sent

    with there.client() as api:
        found = api.pool()
    if there.as_json:
        print(json.dumps(found, default=as_sent))
        return
    for one in found:
        run = printable(one.run or "-", 12)
        print(f"{printable(one.node, 12)}  {one.speed:>8.1f}  {run:<12}  {printable(one.reason, 300)}")
    if not found:
        print("nobody: shoal pool join --server ADDRESS --token TOKEN")


def measured_speed(seconds: float = 0.2) -> float:
    """GFLOP/s of a matrix product on this machine's device: crude, and the same everywhere."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.ones(512, 512, device=device)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        (a @ a).sum().item()
        done += 1
    return round(2 * 512**3 * done / (time.perf_counter() - began) / 1e9, 3)
