"""`shoal lab`: programs on emulated networks, from the command line.

In flow fleet files and commands; out flow the programs' lines, each with its host, and a report. Invariant: with
`--json` stdout has one JSON object and nothing else; exit status 0 only if every program ended with 0.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.apps.printable import printable
from shoal.apps.progress import Bar, lasting, say
from shoal.apps.scaling import sizes_in
from shoal.base.units import duration_s, show_bytes
from shoal.lab.fleet import Fleet
from shoal.lab.lab import EMULATORS, Lab
from shoal.lab.library import find_fleet, shipped, with_hosts
from shoal.lab.links import Line, Network, fleet_to_links, timeline
from shoal.lab.profiles import PROFILES
from shoal.lab.report import Report
from shoal.lab.running import Outcome, plan, run_plan

TIMED_OUT = 124
SHOWN_EVENTS = 12
LONGEST = 4000
MOST_NODES = 64
"""In a comparison of sizes: each is a process here."""

app = typer.Typer(no_args_is_help=True, help="Run real programs on emulated networks.")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, to stdout.")]
FleetName = Annotated[str, typer.Argument(metavar="FLEET", help="A fleet file, or a shipped fleet's name.")]


@app.callback()
def _group() -> None:
    """Run real programs on emulated networks."""


@app.command()
def run(
    fleet: FleetName,
    command: Annotated[list[str] | None, typer.Argument(help="What to run, after `--`.")] = None,
    on: Annotated[list[str] | None, typer.Option("--on", help="Only on this host (repeatable).")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Take so many of its hosts.")] = None,
    timeout: Annotated[str | None, typer.Option(help="End everything after so long, e.g. 90s.")] = None,
    warmup: Annotated[str, typer.Option(help="Do not judge processors and lateness before.")] = "0s",
    output: Annotated[
        Path | None, typer.Option(help="Write output to HOST.out and HOST.err in here.")
    ] = None,
    emulator: Annotated[str, typer.Option(help="auto, netem, native or python.")] = "auto",
    congestion: Annotated[str | None, typer.Option(help="TCP's congestion control, e.g. bbr.")] = None,
    as_json: Json = False,
) -> None:
    """Build the fleet's network, measure it, and run COMMAND in every host."""
    limit_s, warmup_s = _seconds("--timeout", timeout), _seconds("--warmup", warmup) or 0.0
    if emulator not in EMULATORS:
        raise typer.BadParameter(f"allowed: {', '.join(EMULATORS)}", param_hint="--emulator")
    found = find_fleet(fleet)
    found = with_hosts(found, nodes) if nodes else found
    commands = plan(found, command or [], on or [])
    with contextlib.ExitStack() as stack:
        with Bar(f"building and measuring a network of {len(fleet_to_links(found).names)} hosts"):
            lab = stack.enter_context(Lab(found, emulator=emulator, congestion=congestion))
            lab.measure()
        with lasting(limit_s) if limit_s else Bar(f"{len(commands)} programs at work"):
            outcome = run_plan(
                lab, commands, say=_printer(as_json), folder=output, timeout_s=limit_s, warmup_s=warmup_s
            )
    _show_outcome(outcome, as_json)
    raise typer.Exit(TIMED_OUT if outcome.timed_out else 1 if outcome.failed else 0)


@app.command()
def scaling(
    fleet: Annotated[str, typer.Argument(metavar="FLEET", help="A fleet file, or a shipped one's name.")] = (
        "campus"
    ),
    nodes: Annotated[str, typer.Option(help="Sizes to compare, the first against the others.")] = "1,8",
    seconds: Annotated[float, typer.Option(min=5.0, max=3600.0, help="So long each size trains.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """How much useful work more nodes do, by real processes: samples in sealed updates, against what their devices
    could."""
    from shoal.apps.lab_scaling import compare

    rows = compare(find_fleet(fleet), sizes_in(nodes, MOST_NODES), seconds, seed, say)
    if as_json:
        print(json.dumps({"fleet": fleet, "seconds": seconds, "sizes": [asdict(row) for row in rows]}))
        return
    for row in rows:
        valid = "" if row.lab_valid else f" (lab not valid: {'; '.join(row.lab_reasons)})"
        print(
            f"{row.nodes:>5} nodes: {row.useful_samples_per_s:g} samples/s, {row.throughput_share:.1%} of what their "
            f"devices could, {row.linear:.1%} of linear{valid}"
        )


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """The fleets and profiles that ship."""
    fleets = {name: find_fleet(str(path)) for name, path in shipped().items()}
    if as_json:
        print(json.dumps({"fleets": list(fleets), "profiles": list(PROFILES)}))
        return
    print("fleets")
    for name, found in fleets.items():
        print(f"  {name:<14} {' '.join(found.description.split())}")
    print("profiles")
    for name, spec in PROFILES.items():
        line = fleet_to_links(Fleet.model_validate({"hosts": [{"name": "x", "profile": name}]})).lines[0]
        assert spec.up is not None
        print(f"  {name:<14} {_line_words(line)}")


@app.command()
def show(fleet: FleetName, as_json: Json = False) -> None:
    """A fleet's hosts, the way between each two of them, and what will happen."""
    found = find_fleet(fleet)
    network = fleet_to_links(found)
    steps = list(islice(timeline(found), SHOWN_EVENTS))
    if as_json:
        paths = {
            f"{a}->{b}": asdict(network.path(a, b)) for a in network.names for b in network.names if a != b
        }
        events = [{"at_s": step.at_s, "what": step.what} for step in steps]
        hosts = [asdict(line) for line in network.lines]
        print(json.dumps({"fleet": found.name, "hosts": hosts, "paths": paths, "events": events}))
        return
    print(f"{found.name}: {' '.join(found.description.split())}\n")
    for line in network.lines:
        print(f"  {line.name:<16} {_line_words(line)}, speed {line.speed:g}x")
    print("\nround trips, ms")
    _print_matrix(network)
    if steps:
        print("\nwhat happens (the beginning)")
        for step in steps:
            print(f"  {step.at_s:8.1f} s  {step.what}")


def _seconds(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _printer(as_json: bool) -> Any:
    stream = sys.stderr if as_json else sys.stdout

    def tell(host: str, line: str) -> None:
        # Whoever reads along may go away; the programs must not hang for it.
        with contextlib.suppress(OSError):
            say(f"[{host}] {printable(line, LONGEST)}", stream)

    return tell


def _show_outcome(outcome: Outcome, as_json: bool) -> None:
    report = outcome.report
    if as_json:
        print(json.dumps({**report.as_dict(), "failed": list(outcome.failed)}))
        return
    print(f"\n{'host':<16} {'exit':<8} {'sent':>10} {'received':>10} {'lost':>7} {'dropped':>8}")
    for host in report.hosts:
        codes = ",".join(str(code) for code in host.codes) or "-"
        traffic = f"{show_bytes(host.sent_bytes):>10} {show_bytes(host.received_bytes):>10}"
        print(f"{host.name:<16} {codes:<8} {traffic} {host.lost_packets:>7} {host.queue_drops:>8}")
    for event in report.events[:SHOWN_EVENTS]:
        print(f"at {event.at_s:.1f} s: {event.what} ({1e3 * event.late_s:.1f} ms late)")
    _show_accuracy(report)
    if outcome.timed_out:
        print("ended because the time was over")
    print(f"{len(report.hosts)} hosts, {len(outcome.failed)} failed")


def _show_accuracy(report: Report) -> None:
    how = "root" if report.privileged else "unprivileged"
    words = f"{report.emulator} ({report.doorway}, {how}), congestion control {report.congestion}"
    print(f"\nemulator: {words}")
    for what in dict.fromkeys(item.what for item in report.accuracy):
        worst = max(
            (item for item in report.accuracy if item.what == what),
            key=lambda item: abs(item.measured - item.expected) / max(item.tolerance, 1e-12),
        )
        print(f"worst {worst.words()}")
    found = {"probes": report.late_probes_p99_s, "programs": report.late_p99_s}
    late = ", ".join(f"{1e3 * value:.2f} ms ({of})" for of, value in found.items() if value is not None)
    print(f"lateness p99 {late or 'not known'}; processors busy {report.cpu.busy_mean:.0%}")
    print("valid: yes" if report.valid else "valid: no")
    for reason in report.reasons:
        print(f"  {reason}")


def _line_words(line: Line) -> str:
    rates = "/".join(
        f"{8e-6 * rate:g}" if rate else "unlimited" for rate in (line.up_bytes_s, line.down_bytes_s)
    )
    words = f"{rates} Mbit/s up/down, {1e3 * line.latency_s:g} ms to the core"
    if line.jitter_s:
        words += f" +- {1e3 * line.jitter_s:g}"
    return f"{words}, {100 * line.loss:g} % loss"


def _print_matrix(network: Network) -> None:
    names = list(network.names)[:16]
    print(" " * 14 + "".join(f"{name[-7:]:>8}" for name in names))
    for a in names:
        trips = [1e3 * (network.path(a, b).latency_s + network.path(b, a).latency_s) for b in names]
        cells = "".join(
            f"{trip:8.0f}" if a != b else f"{'-':>8}" for trip, b in zip(trips, names, strict=True)
        )
        print(f"  {a:<12}{cells}")
