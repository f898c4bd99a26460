"""`shoal pool`: lend this machine to a coordinator's runs, whichever it suits, and see who is lent.

In flow a coordinator's address and a token of scope `lend`; out flows a `shoal join` for the run that the coordinator
names, ended and begun anew when it names another. Invariant: at most one `shoal join` is on at a time, with this
machine's one key, and it leaves cleanly before the next begins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.home import find_home
from shoal.apps.join import quantity
from shoal.apps.option_groups import grouped
from shoal.apps.printable import printable
from shoal.apps.runs import Asked
from shoal.base.errors import ShoalError
from shoal.base.orphans import dies_with
from shoal.base.units import rate_bytes_s
from shoal.credit.spec import read_credits

if TYPE_CHECKING:
    from shoal.apps.api.client import ApiClient
    from shoal.apps.api.models import PoolPlace
    from shoal.wire.identity import Identity

app = typer.Typer(help="Lend this machine to a pool of runs.", no_args_is_help=True)
LEAVES_S = 60.0
"""How long a `shoal join` may take to leave before it is killed."""
RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
"""After a `shoal join` that failed, this long, and twice as long each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this machine says of itself."""

    speed: float
    memory_bytes: int
    up_bytes_s: float
    least_pay_micro: int
    prefers: tuple[str, ...]


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
    *,
    there: Asked,
) -> None:
    """Work for the run that the coordinator names, until Ctrl-C."""
    from shoal.worlds.real.keys import load_or_create_identity

    home = find_home(there.home)
    home.node.mkdir(parents=True, exist_ok=True)
    offer = Offer(
        speed=measured_speed(),
        memory_bytes=_free_memory(),
        up_bytes_s=quantity("--up", up, rate_bytes_s) or 0.0,
        least_pay_micro=quantity("--min-price", min_price, read_credits) or 0,
        prefers=tuple(prefer or ()),
    )
    words = ["--home", str(home.root), "--yes", "--min-price", min_price, *(join_options or ())]
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    with there.client() as api:
        Lent(api, load_or_create_identity(home.node_key), offer, words, asked).run()


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
        print(f"{printable(one.node, 12)}  {one.speed:>8.1f}  {run:<12}  {printable(one.reason, 200)}")
    if not found:
        print("nobody: shoal pool join --server ADDRESS --token TOKEN")


class Lent:
    """One machine, and the `shoal join` that it has on."""

    def __init__(
        self, api: ApiClient, identity: Identity, offer: Offer, words: list[str], asked: threading.Event
    ) -> None:
        self._api, self._identity, self._offer, self._words, self._asked = api, identity, offer, words, asked
        self._run: str | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._said = ""
        self._failed = 0

    def run(self) -> None:
        """Until asked to stop. Raises what the first offer raises: later ones are made again and again."""
        place = self._ask()
        try:
            while not self._asked.is_set():
                self._work(place)
                self._wait(place.ask_again_s)
                try:
                    place = self._ask()
                except ShoalError as error:
                    self._say(f"{error.cause}; asking again")
                    place = place.model_copy(update={"ask_again_s": RETRY_S})
        finally:
            self._leave()
            self._ask(leaves=True)

    def _ask(self, *, leaves: bool = False) -> PoolPlace:
        from shoal.apps.api.pooling import signed_offer

        offer = self._offer
        values = {
            "coordinator": self._api.health().coordinator,
            "at_ms": time.time_ns() // 1_000_000,
            "speed": offer.speed,
            "memory_bytes": offer.memory_bytes,
            "up_bytes_s": offer.up_bytes_s,
            "least_pay_micro": offer.least_pay_micro,
            "prefers": list(offer.prefers),
            "leaves": leaves,
        }
        return self._api.lend(signed_offer(self._identity, values))

    def _work(self, place: PoolPlace) -> None:
        """Be in the run that was named, and in no other."""
        run, over = place.run, self._child is None or self._child.poll() is not None
        if run == self._run and not over:
            return
        self._leave()
        self._run = run
        if run is None:
            self._say(f"works for no run: {place.reason}")
            return
        self._say(f"works for run {run[:12]}: {place.reason}")
        command = [sys.executable, "-m", "shoal.apps.cli", "join", str(place.ticket), *self._words]
        # A session of its own: Ctrl-C is for us, and we let it leave.
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=dies_with(os.getpid())
        )

    def _wait(self, seconds: float) -> None:
        """For so long, or until the run is over here, or until asked to stop."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._asked.wait(0.2):
            if self._child is not None and self._child.poll() is not None:
                self._failed = self._failed + 1 if self._child.returncode else 0
                if self._failed:
                    self._asked.wait(min(RETRY_S * 2**self._failed, LONGEST_RETRY_S))
                return

    def _leave(self) -> None:
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
        try:
            self._child.wait(LEAVES_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _say(self, text: str) -> None:
        if text != self._said:
            print(printable(text, 400), file=sys.stderr, flush=True)
            self._said = text


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


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
