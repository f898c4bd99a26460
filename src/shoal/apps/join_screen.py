"""The volunteer's terminal: told once, asked at most once, then one line that changes.

In flow the run's recipe and the node at work; out flows text, and an answer. Invariant: without a terminal it is
plain lines, one for each round or change of fortune, so that a log file stays short and readable.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.apps.idle import MEASURED_BY
from shoal.apps.join_waiting import Speed, with_wait
from shoal.apps.joining import Volunteer, check_code, check_place, needs_code
from shoal.apps.node_status import MAX_LINE, NodeNow, describe, observe, show
from shoal.apps.printable import printable
from shoal.base.units import show_bytes
from shoal.credit.spec import show_credits
from shoal.node.service import NodeService
from shoal.runlog.entries import Genesis
from shoal.strategy.recipe import Recipe
from shoal.worlds.real.host import RealHost

REFRESH_S = 0.25
NO_CODE = "none of the organiser's: only this package runs, on the recipe's numbers"


class Screen:
    def __init__(
        self,
        volunteer: Volunteer,
        device: torch.device,
        run: str,
        *,
        ask: bool,
        as_json: bool = False,
        masked: bool = False,
    ) -> None:
        self._volunteer = volunteer
        self._device = device
        self._run = run
        self._ask = ask
        self._as_json = as_json
        self._masked = masked
        """Whether this machine joins a masked group of the run, not the run itself."""
        self._told = asyncio.Event()

    async def agree(self, recipe: Recipe, genesis: Genesis) -> bool:
        """Say what will run; True to go on. Raises SH-JOIN-09 or -12."""
        if not self._masked:
            check_place(recipe)
        check_code(recipe, allow_code=self._volunteer.allow_code)
        here, limits = _here(self._volunteer, self._device), _limits(self._volunteer)
        code = f"allowed: {why}" if (why := needs_code(recipe)) else NO_CODE
        lines = describe(recipe, genesis, self._run, here, limits, code)
        if self._as_json:
            told = {"run": self._run, "name": recipe.name, "here": here, "limits": limits, "code": code}
            print(json.dumps({**told, "parameters": genesis.layout.numel}), flush=True)
        else:
            print("\n".join(printable(line, MAX_LINE) for line in lines), flush=True)
        agreed = not self._ask or await _said_yes("Take part? [Y/n] ")
        self._told.set()
        return agreed

    async def watch(self, service: NodeService, host: RealHost) -> None:
        """Show how it goes, until cancelled."""
        await self._told.wait()
        speed = Speed()
        with _lines(self._as_json) as show_now:
            while True:
                show_now(with_wait(observe(service, host.meter.total()), service, speed))
                await asyncio.sleep(REFRESH_S)


def _here(volunteer: Volunteer, device: torch.device) -> str:
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    inbound = f"takes connections on port {volunteer.port}" if volunteer.port is not None else "outbound only"
    return f"{device}{threads}; {inbound}; named {volunteer.name!r}"


def _limits(volunteer: Volunteer) -> str:
    limits = volunteer.limits
    parts = [
        f"up {show_bytes(limits.max_up_bytes_s)}/s" if limits.max_up_bytes_s else "",
        f"down {show_bytes(limits.max_down_bytes_s)}/s" if limits.max_down_bytes_s else "",
        f"{show_bytes(limits.month_bytes)} a month" if limits.month_bytes else "",
        f"{show_bytes(volunteer.gpu_memory_bytes)} of GPU memory" if volunteer.gpu_memory_bytes else "",
        f"only when idle (by {MEASURED_BY})" if volunteer.when_idle else "",
        f"for {show_credits(volunteer.min_price_micro)} credits a unit or more"
        if volunteer.min_price_micro
        else "",
    ]
    return ", ".join(part for part in parts if part) or "none set"


async def _said_yes(question: str) -> bool:
    """Ask in a thread that dies with the process, so that Ctrl-C needs no answer first."""
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    answers: list[str] = []

    def read() -> None:
        print(question, end="", flush=True)
        answers.append(sys.stdin.readline().strip().lower())
        loop.call_soon_threadsafe(answered.set)

    threading.Thread(target=read, daemon=True, name="ask").start()
    await answered.wait()
    return answers[0] in ("", "y", "yes")


@contextmanager
def _lines(as_json: bool) -> Iterator[Callable[[NodeNow], None]]:
    if as_json or not sys.stdout.isatty():
        yield PlainLines(say=(lambda now: json.dumps(asdict(now))) if as_json else show).show
        return
    with Live(console=Console(), auto_refresh=False, transient=True) as live:
        yield lambda now: live.update(Text(show(now), overflow="ellipsis", no_wrap=True), refresh=True)


class PlainLines:
    """A line for every round, and whenever the node comes in, falls out or pauses."""

    def __init__(
        self,
        write: Callable[[str], None] = lambda line: print(line, flush=True),
        say: Callable[[NodeNow], str] = show,
    ) -> None:
        self._write = write
        self._say = say
        self._last: tuple[int, str, bool] | None = None

    def show(self, now: NodeNow) -> None:
        # How long it waits is a guess, which changes all the time.
        waits = now.standing.startswith(("waits", "catches"))
        standing = now.standing.partition(",")[0].partition(":")[0] if waits else now.standing
        key = (now.round, standing, now.doing.startswith("paused"))
        if key != self._last:
            self._last = key
            self._write(self._say(now))
