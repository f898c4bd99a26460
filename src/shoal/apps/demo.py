"""`shoal demo` and `make demo`: one machine plays a coordinator and four volunteers, from start to model.

In flows nothing but this package; out flow a live view, a summary and a folder that `transformers` loads.
Invariant: what is shown happened: the processes are real ones over the real transport, one of them is really
killed, every number of the summary is read from the signed log or measured, and no process outlives this one.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.apps.home import find_home, read_secret
from shoal.apps.option_groups import JsonOption
from shoal.base.errors import ShoalError
from shoal.base.units import show_bytes, show_duration

if TYPE_CHECKING:
    from shoal.apps.api.client import ApiClient
    from shoal.apps.chain_demo import ChainDemo
    from shoal.apps.demo_processes import Child, Family
    from shoal.apps.demo_summary import Facts, Finished
    from shoal.apps.demo_view import View
    from shoal.apps.logs_checking import Replayed

NODES = 4
VICTIM = "node-3"
LOOK_EVERY_S = 0.5
START_S, OVER_S, END_S = 90.0, 60.0, 20.0
AWAY_S = 5.0
"""How long the killed node stays away."""

# The shipped recipe, cut down to what four processes learn in a minute on two cores.
RECIPE = "stdlib-gpt"
SETTINGS = (
    "name=stdlib-gpt-demo",
    "model.layers=3",
    "model.width=96",
    "data.context=64",
    "data.max_bytes=8000000",
    "inner.batch_size=8",
    "strategy.schedule.steps=15",
    "strategy.seal.deadline_s=20",
    f"membership.min_nodes={NODES}",
    "membership.heartbeat_s=0.5",
    "membership.lease_s=4",
    "membership.reconnect_s=1.5",
    "evaluation.every=2",
    "budget.rounds=null",
)


def demo(
    seconds: Annotated[float, typer.Option(min=10, help="How long the nodes train.")] = 50.0,
    out: Annotated[
        Path | None, typer.Option(help="Where the model goes (default: ./shoal-demo-model).")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep logs, keys and blobs in this folder.")] = None,
    chain: Annotated[bool, typer.Option("--chain", help="Stake, settle and claim on a local chain.")] = False,
    as_json: JsonOption = False,
) -> None:
    """A coordinator and four nodes on this machine, one of them killed half-way, from start to model."""
    began = monotonic()
    target = (out or Path("shoal-demo-model")).absolute()
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        fields = _show(seconds, target, keep, chain)
        print(f"\ndone in {show_duration(monotonic() - began)}", flush=True)
    if as_json:
        print(json.dumps({**fields, "seconds": monotonic() - began}))


def _show(seconds: float, target: Path, keep: Path | None, chain: bool) -> dict[str, Any]:
    with (
        _ending_on_signals(),
        _folder(keep) as folder,
        _local_chain(folder) if chain else nullcontext() as local,
    ):
        if local is not None:
            local.stake()
        view = _train(folder, seconds)
        fields = _conclude(folder, target, view)
        _show_credit(folder)
        if local is not None:
            local.settle()
    return fields


def _local_chain(folder: Path) -> ChainDemo:
    from shoal.apps.chain_demo import ChainDemo

    return ChainDemo(folder, _names(), lambda line: print(line, flush=True))


def _show_credit(folder: Path) -> None:
    from shoal.apps.credit_reading import balance_table, read_credit

    print("\nCREDIT", flush=True)
    account = read_credit(folder / "coordinator", None, "", node=False).account
    print("\n".join(f"  {line}" for line in balance_table(account)), flush=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """A polite end by any signal is an end like Ctrl-C: everything is cleaned up on the way out."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the run -----------------------------------------------------------------------------------------------


def _train(folder: Path, seconds: float) -> View:
    """Coordinator and nodes as processes, from the first connection to the saved final state."""
    from shoal.apps.api.client import ApiClient
    from shoal.apps.demo_processes import Family
    from shoal.apps.demo_view import View

    print("starting a coordinator: it cuts the standard library's source text into shards ...", flush=True)
    with Family(folder / "logs") as family:
        coordinator, ticket = _start_coordinator(family, folder, seconds)
        home = find_home(folder / "coordinator")
        address = home.api_address.read_text("utf-8").strip()
        print(
            f"starting {NODES} nodes, one thread each; they join with the ticket it printed ...", flush=True
        )
        nodes = {name: _start_node(family, folder, name, ticket) for name in _names()}
        with ApiClient(address, read_secret(home.admin_token) or "") as api, View(seconds) as view:
            _follow(api, family, nodes, view, folder, ticket, seconds)
        for node in nodes.values():
            with suppress(ShoalError):
                _await_end(family, node)
        family.stop(coordinator)
    return view


def _names() -> list[str]:
    return [f"node-{number}" for number in range(1, NODES + 1)]


def _start_coordinator(family: Family, folder: Path, seconds: float) -> tuple[Child, str]:
    arguments = ["serve", "--home", str(folder / "coordinator"), "--recipe", RECIPE]
    for option in ("--port", "--control-port", "--blob-port"):
        arguments += [option, "0"]
    for setting in (*SETTINGS, f"budget.seconds={seconds:g}"):
        arguments += ["--set", setting]
    child = family.start("coordinator", arguments, {})
    said = family.await_line(child, lambda line: line == "ready", START_S)
    tickets = [line.split()[-1] for line in said if line.strip().startswith("shoal join ")]
    if not tickets:
        raise family.failed(child)
    return child, tickets[0]


def _start_node(family: Family, folder: Path, name: str, ticket: str) -> Child:
    options = {"--home": str(folder / name), "--name": name, "--device": "cpu", "--threads": "1"}
    inbound = {"--port": "0", "--bind": "127.0.0.1"}
    flags = [word for pair in {**options, **inbound}.items() for word in pair]
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return family.start(name, ["join", ticket, *flags, "--yes"], environment)


def _follow(
    api: ApiClient,
    family: Family,
    nodes: dict[str, Child],
    view: View,
    folder: Path,
    ticket: str,
    seconds: float,
) -> None:
    """Watch the run to its end, and play fate half-way."""
    run = api.runs()[0].run
    began: float | None = None
    killed_at: float | None = None
    returned = False
    deadline = monotonic() + START_S + seconds + OVER_S
    while True:
        status = api.run(run)
        now = monotonic()
        if began is None and status.state == "running":
            began = now
            view.restart_clock()
            view.event(f"all {NODES} nodes are in: round 0 begins")
        view.show(status)
        if status.state == "over":
            same = status.attested.by if status.attested else 0
            view.event(f"over: {status.stopped}; {same} nodes attest the same final state")
            view.show(status)
            return
        if began is not None and killed_at is None and now - began >= seconds / 2:
            family.kill(nodes[VICTIM])
            killed_at = now
            view.event(f"SIGKILL to {VICTIM} (process {nodes[VICTIM].process.pid})")
        if killed_at is not None and not returned and now - killed_at >= AWAY_S:
            nodes[VICTIM] = _start_node(family, folder, VICTIM, ticket)
            returned = True
            view.event(f"{VICTIM} starts again from its own disk")
        _check_alive(family, nodes, returned or killed_at is None)
        if now > deadline:
            raise ShoalError("SH-RUN-01", f"the run hangs: {status.waiting_for}", f"read {folder}/logs")
        sleep(LOOK_EVERY_S)


def _check_alive(family: Family, nodes: dict[str, Child], victim_too: bool) -> None:
    for name, node in nodes.items():
        if not node.alive and node.process.returncode != 0 and (name != VICTIM or victim_too):
            raise family.failed(node)


def _await_end(family: Family, node: Child) -> None:
    """A node ends by itself once the final state is saved."""
    family.await_line(node, lambda line: line.startswith("ended:"), END_S)


# --- the summary -------------------------------------------------------------------------------------------


def _conclude(folder: Path, target: Path, view: View) -> dict[str, Any]:
    """Show how it went; the same for tools."""
    from shoal.apps import demo_summary as summary

    finished = summary.open_finished(folder / "coordinator")
    facts = summary.facts_of(finished, VICTIM)
    replayed = summary.replayed(folder / _names()[0])
    print(
        f"the same model on the same {facts.tokens / 1e6:.1f}M tokens in one process, for comparison:",
        flush=True,
    )
    alone = summary.train_alone(finished, NODES, facts, _ProgressLine().show)
    together = _loss_together(finished)
    text = summary.export_and_check(finished, target)
    for line in _lines(finished, facts, view, together, alone, replayed):
        print(line)
    print(f"\n  {target}  loads with transformers: ok\n\n  it writes:")
    print("\n".join(f"    | {line}" for line in text.splitlines()), flush=True)
    return {
        **asdict(facts),
        "validation_loss": together,
        "validation_loss_alone": alone,
        "state": replayed.state,
        "attested": replayed.attested,
        "model": str(target),
    }


def _loss_together(finished: Finished) -> float:
    from shoal.apps.demo_summary import trainer_of, validation_loss

    trainer = trainer_of(finished)
    trainer.load(finished.params)
    return validation_loss(trainer, trainer.batch_size)


def _lines(
    finished: Finished, facts: Facts, view: View, together: float, alone: float, replayed: Replayed
) -> list[str]:
    up, down = view.bytes.total()
    gradients = facts.parameters * 4 * facts.steps
    entries = len(finished.log.entries)
    return [
        "",
        "SUMMARY",
        f"  validation loss   {together:.3f} by {NODES} nodes that spoke every"
        f" {finished.recipe.strategy.schedule.steps} steps",
        f"                    {alone:.3f} by one process, {NODES} times the batch, as many steps and tokens"
        f" ({together - alone:+.3f})",
        f"  sent              {show_bytes(facts.update_bytes)} of updates; fp32 gradients at every step would be"
        f" {show_bytes(gradients)}",
        f"                    ({gradients / max(1, facts.update_bytes):.0f} times as much: parameters x 4 bytes"
        f" x {facts.steps} steps)",
        f"  on the wire       {show_bytes(up)} up, {show_bytes(down)} down, by the nodes' own meters:"
        " data, updates to every peer, control",
        f"  the crash         {facts.repeated} rounds lost: {facts.rounds} sealed, {facts.missed} of them without"
        f" {VICTIM} while it was away",
        f"                    longest wait for a seal {facts.slowest_s:.1f} s",
        f"  the log           {entries} signed entries hold; {replayed.rounds} rounds replayed from the beginning"
        f" give the state",
        f"                    {replayed.state[:32]}..., which {replayed.attested} nodes attested",
    ]


class _ProgressLine:
    """One line that grows, or a few lines where there is no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown_at = monotonic()

    def show(self, step: int, total: int, loss: float) -> None:
        every_s = 0.25 if self._terminal else 10.0
        if step < total and monotonic() - self._shown_at < every_s:
            return
        self._shown_at = monotonic()
        end: str = "\r" if self._terminal and step < total else "\n"
        print(f"  step {step} of {total}, loss {loss:.3f}   ", end=end, flush=True)


def main() -> Any:
    """`python -m shoal.apps.demo`."""
    from shoal.apps.cli import main as cli

    cli(["demo", *sys.argv[1:]])


if __name__ == "__main__":
    main()
