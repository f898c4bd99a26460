"""A lab: hosts, links between them, and programs in the hosts.

    with Lab(find_fleet("continental")) as lab:
        print(lab.run("west-1", ["ping", "-c", "3", "east-1"]).output)

In flows a fleet; out flow programs' results and a report. Invariant: leaving the `with` block ends everything that
was started in the lab; so does the end of this process, however it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.base.errors import ShoalError
from shoal.lab.accuracy import Compared, late_quantile
from shoal.lab.building import native_emulator
from shoal.lab.clockwork import Clockwork
from shoal.lab.fleet import Fleet
from shoal.lab.keeping import Keeping, Process
from shoal.lab.kernel import ipv4
from shoal.lab.links import Between, Change, Power, Tune, fleet_to_links
from shoal.lab.orders import all_orders, orders_after
from shoal.lab.pace import PACE_FOLDER, environment_of, read_pace
from shoal.lab.probing import measure
from shoal.lab.report import HostReport, Report, why_invalid
from shoal.lab.scratch import scratch

MOST_HOSTS = 250
GRACE_S = 2.0
"""How long programs may take to end when asked, before they are killed."""
EMULATORS: dict[str, tuple[str, ...]] = {
    "auto": ("netem", "native", "python"),
    "netem": ("netem",),
    "native": ("native",),
    "python": ("python",),
}
ORDER_S = 10.0
COUNTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that has ended."""

    code: int | None
    """None if it had to be killed for taking too long."""
    output: str
    errors: str


class Lab:
    def __init__(self, fleet: Fleet, *, emulator: str = "auto", congestion: str | None = None) -> None:
        self.fleet = fleet
        self.network = fleet_to_links(fleet)
        self.hosts: tuple[str, ...] = tuple(self.network.names)
        self._emulator, self._congestion = emulator, congestion or fleet.congestion
        self._keeping: Keeping | None = None
        self._programs: list[Process] = []
        self._ordering = threading.RLock()
        self._accuracy: tuple[Compared, ...] | None = None
        self._scratch = contextlib.ExitStack()
        self._pace_folder: Path | None = None
        self._before: list[list[int]] = [[0] * COUNTS for _ in self.hosts]
        """The emulator's counts when everything began: its packets, and how late the probes' were."""
        self._late_before: list[int] = []
        self._clockwork = Clockwork(self)
        if len(self.hosts) > MOST_HOSTS:
            raise ShoalError(
                "SH-LAB-02",
                f"{len(self.hosts)} hosts; a lab takes {MOST_HOSTS}",
                "simulate it, or take fewer",
            )

    # --- beginning and end -------------------------------------------------------------------------------

    def open(self) -> None:
        """Build it. Raises SH-LAB-03, -04 or -05."""
        native = native_emulator() if self._emulator in ("auto", "native") else None
        request: dict[str, Any] = {
            "emulators": EMULATORS[self._emulator],
            "native": str(native) if native else None,
            "mtu": self.fleet.mtu,
            "seed": self.fleet.seed,
            "congestion": self._congestion,
        }
        self._keeping = Keeping(request, self.hosts, [self.address(name) for name in self.hosts])
        try:
            self._keeping.emulator.settimeout(ORDER_S)
            if self._keeping.emulator.recv(64) != b"ready":
                raise ShoalError("SH-LAB-04", "the emulator ended early", "try --emulator python")
            for order in all_orders(self.network):
                self._order(order)
            self._pace_folder = self._scratch.enter_context(scratch())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every program (asked first, then killed) and forget every host."""
        self._clockwork.stop()
        if self._keeping is not None:
            if not self._keeping.emulator_ended:
                self.end_programs(self._programs)
            self._keeping.close()
            self._keeping = None
        self._pace_folder = None
        self._scratch.close()

    def __enter__(self) -> Lab:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Lab:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # --- programs ----------------------------------------------------------------------------------------

    def address(self, host: str) -> str:
        """A host's IPv4 address; its name stands for it inside the lab."""
        return ipv4(self._place(host))

    def start(
        self,
        host: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: int | None = None,
        errors: int | None = None,
        stdin: int | None = None,
    ) -> Process:
        """Start a program in a host, with these descriptors (default: nothing to read, nowhere to write).

        Raises SH-LAB-06."""
        with contextlib.ExitStack() as stack:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            chosen = [nothing if fd is None else fd for fd in (stdin, output, errors)]
            process = self._kept.start(
                self._place(host),
                words,
                environment={**self.environment(host), **(environment or {})},
                folder=folder or Path.cwd(),
                fds=(chosen[0], chosen[1], chosen[2]),
            )
        self._programs.append(process)
        return process

    def run(
        self,
        host: str,
        words: Sequence[str],
        *,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Completed:
        """Run a program in a host to its end, and what it wrote. Raises SH-LAB-06."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self.start(
                host,
                words,
                environment=environment,
                folder=folder,
                output=output.fileno(),
                errors=errors.fileno(),
            )
            code = process.wait(timeout_s)
            if code is None:
                self.end_programs([process], signal.SIGKILL)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        return Completed(code=code, output=texts[0], errors=texts[1])

    async def run_async(
        self, host: str, words: Sequence[str], *, timeout_s: float | None = None
    ) -> Completed:
        """`run`, without holding up the event loop."""
        return await asyncio.to_thread(self.run, host, words, timeout_s=timeout_s)

    def end_programs(self, programs: Sequence[Process], first: int = signal.SIGTERM) -> None:
        """Ask those that still run to end; kill those that do not."""
        left = [program for program in programs if program.code is None]
        for number in (first, signal.SIGKILL):
            for program in left:
                program.signal(number)
                program.signal(signal.SIGCONT)
            ends = time.monotonic() + GRACE_S
            left = [program for program in left if program.wait(max(0.0, ends - time.monotonic())) is None]

    def disown(self, programs: Sequence[Process]) -> None:
        """Leave programs out of the report: probes, say."""
        self._programs = [program for program in self._programs if program not in programs]

    def environment(self, host: str) -> dict[str, str]:
        """What every program in a host finds in its environment."""
        place = self._place(host)
        line = self.network.lines[place]
        found = {
            "SHOAL_LAB": self.fleet.name,
            "SHOAL_LAB_HOST": host,
            "SHOAL_LAB_INDEX": str(place),
            "SHOAL_LAB_SIZE": str(len(self.hosts)),
            "SHOAL_LAB_ADDRESS": self.address(host),
            "SHOAL_LAB_REGION": line.region,
            "SHOAL_LAB_FIRST": self.address(self.hosts[0]),
            "SHOAL_LAB_HOSTS": ",".join(f"{name}={self.address(name)}" for name in self.hosts),
            **environment_of(line.speed, self.fleet.step),
        }
        if self._pace_folder is not None:
            found[PACE_FOLDER] = str(self._pace_folder)
        return found

    # --- links -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The fleet's events count from now, and so does everything that the report judges."""
        stats = json.loads(self._order("stats"))
        self._before, self._late_before = stats["hosts"], stats["late"]
        self._order("mark")
        self._clockwork.begin()

    def begin_again(self) -> None:
        """The network as the fleet says, and its events from now on once more; what the report judges goes on."""
        self._clockwork.stop()
        asleep = tuple(line.name for line in self.network.lines if not line.on)
        with self._ordering:
            self.network = fleet_to_links(self.fleet)
            for order in all_orders(self.network):
                self._order(order)
        for host in asleep:
            self._kept.signal_host(self._place(host), signal.SIGCONT)
        self._clockwork.begin_again()

    def judge_from_now(self) -> None:
        """Programs have warmed up: lateness and processor use count from now. Events go on as they were."""
        self._order("mark")
        self._clockwork.forget()

    def change(self, change: Change) -> None:
        """Change the network now."""
        with self._ordering:
            self.network = self.network.after(change)
            for order in orders_after(self.network, change):
                self._order(order)
        if isinstance(change, Power):
            for host in change.hosts:
                self._kept.signal_host(self._place(host), signal.SIGCONT if change.on else signal.SIGSTOP)

    def cut(self, a: str, b: str) -> None:
        """Let nothing pass between two hosts."""
        self.change(Between(frozenset({(a, b), (b, a)}), True))

    def heal(self, a: str, b: str) -> None:
        self.change(Between(frozenset({(a, b), (b, a)}), False))

    def tune(self, host: str, **values: float) -> None:
        """Change a line: up, down (bytes/s), latency, jitter (s), loss (a fraction), queue (bytes)."""
        self.change(Tune((host,), values))

    def _order(self, text: str) -> str:
        with self._ordering:
            try:
                self._kept.emulator.send(text.encode("ascii"))
                answer = self._kept.emulator.recv(1 << 20).decode("ascii")
            except (OSError, TimeoutError) as error:
                raise ShoalError(
                    "SH-LAB-04", f"the emulator does not answer: {error}", "start the lab again"
                ) from None
        if answer in ("", "unknown command"):
            raise ShoalError("SH-LAB-04", f"the emulator does not know {text!r}", "start the lab again")
        return answer

    # --- what it was like --------------------------------------------------------------------------------

    def measure(self) -> tuple[Compared, ...]:
        """Probe the idle links: round trips, losses, rates. Some seconds. Do it before programs start."""
        self._accuracy = tuple(measure(self, self._kept.about["emulator"]))
        return self._accuracy

    def report(self, *, timed_out: bool = False) -> Report:
        """What it was like until now."""
        about = self._kept.about
        stats: dict[str, Any] = {"late": [], "hosts": self._before}
        if not self._kept.emulator_ended:
            stats = json.loads(self._order("stats"))
        late = stats["late"]
        made = Report(
            fleet=self.fleet.name,
            emulator=about["emulator"],
            doorway=about["doorway"],
            privileged=about["privileged"],
            congestion=about["congestion"],
            kernel=platform.release(),
            seconds=self._clockwork.seconds(),
            accuracy=self._accuracy or (),
            late_p50_s=late_quantile(late, 0.5),
            late_p99_s=late_quantile(late, 0.99),
            late_packets=sum(late),
            late_probes_p99_s=late_quantile(self._late_before, 0.99),
            cpu=self._clockwork.cpu(),
            pace=read_pace(self._pace_folder),
            hosts=self._host_reports(stats["hosts"]),
            events=self._clockwork.happened(),
            probed=self._accuracy is not None,
            timed_out=timed_out,
            emulator_ended=self._kept.emulator_ended,
        )
        return replace(made, reasons=why_invalid(made))

    def _host_reports(self, counts: list[list[int]]) -> tuple[HostReport, ...]:
        drops = self._kept.drops()
        since = [
            [now - then for now, then in zip(*both, strict=True)]
            for both in zip(counts, self._before, strict=True)
        ]
        return tuple(
            HostReport(
                name=name,
                codes=tuple(program.code for program in self._programs if program.host == name),
                sent_bytes=count[1],
                received_bytes=count[3],
                lost_packets=count[4],
                queue_drops=count[5],
                unread_drops=drop,
            )
            for name, count, drop in zip(self.hosts, since, drops, strict=True)
        )

    @property
    def _kept(self) -> Keeping:
        if self._keeping is None:
            raise ShoalError("SH-LAB-06", "the lab is not open", "use it as `with Lab(fleet) as lab:`")
        return self._keeping

    def _place(self, host: str) -> int:
        if host not in self.network.names:
            names = ", ".join(self.hosts[:12])
            raise ShoalError("SH-LAB-06", f"there is no host {host!r}", f"there are: {names}")
        return self.network.names[host]
