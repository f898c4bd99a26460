"""The `shoal` command: a table of commands, and how failures reach a person.

In flow arguments; out flow exit statuses: 0, 1 with three short lines for a `ShoalError`, 2 with the same for a wrong
command line, 130 for Ctrl-C. Invariant: a command's module is imported when it is used, so that help is quick
and one broken part breaks only itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from shoal import __version__
from shoal.apps import progress
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError

USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)
WRONG_LINE = "SH-CLI-01"
LONGEST = 4000
"""Characters of an error that are shown: its words may be a stranger's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is found (`module:name`, a function or a Typer app), and what it does in a line."""

    target: str
    help: str


COMMANDS: dict[str, Entry] = {
    "serve": Entry("shoal.apps.serve:serve", "Run a coordinator: logs, rounds and the HTTP API."),
    "join": Entry("shoal.apps.join:join", "Take part in a run with this machine."),
    "group": Entry("shoal.apps.group:group", "Begin a masked group of a run, and be its hub."),
    "hub": Entry("shoal.apps.hub:hub", "Begin a region of a run, and be its hub."),
    "pool": Entry("shoal.apps.pool:app", "Lend this machine to whichever of a coordinator's runs it suits."),
    "keys": Entry("shoal.apps.keys:app", "This machine's keys: show, replace and revoke them."),
    "run": Entry("shoal.apps.runs:app", "Submit, watch, stop and export runs."),
    "ckpt": Entry("shoal.apps.ckpt:app", "Checkpoints: a graph of saved states to fork, merge and move."),
    "top": Entry("shoal.apps.top:top", "Runs and nodes, live, in a terminal."),
    "report": Entry("shoal.apps.report:report", "Write a self-contained HTML report of a run."),
    "mirror": Entry("shoal.apps.mirror:mirror", "A run's figures to TensorBoard, W&B or MLflow."),
    "log": Entry("shoal.apps.logs:app", "Show, verify and replay a run's log."),
    "audit": Entry("shoal.apps.audit:app", "What audits found, and the evidence run again."),
    "credit": Entry("shoal.apps.credit:app", "What each node earned, why, and the proof of it."),
    "compare": Entry("shoal.apps.compare:compare", "Recipes side by side on one fleet: table and plot."),
    "lab": Entry("shoal.apps.lab:app", "Run real programs on emulated networks."),
    "chain": Entry("shoal.apps.chain:app", "Settle a run's credit on an EVM chain, or on a local one."),
    "sim": Entry("shoal.apps.sim:app", "Simulated runs under seeded catastrophes."),
    "bench": Entry("shoal.apps.bench:app", "Measure training, blobs and the fold on this machine."),
    "doctor": Entry("shoal.apps.doctor:doctor", "Find out why something does not work."),
    "demo": Entry(
        "shoal.apps.demo:demo", "A coordinator and four nodes on this machine, from start to model."
    ),
}


class LazyCommand(TyperCommand):
    """Stands in the list of commands for one whose module is not imported yet."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self._target = entry.target

    def load(self) -> Any:
        """The real command."""
        module_name, _, attribute = self._target.partition(":")
        found: Any = getattr(importlib.import_module(module_name), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(self.name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = self.name
        return command

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return self.load().make_context(*args, **extra)


class LazyGroup(TyperGroup):
    """The table above as a group. (Which click Typer stands on differs by version, hence `Any`.)"""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _in_our_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _in_our_words():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return LazyCommand(cmd_name, entry) if entry else None


@contextmanager
def _in_our_words() -> Iterator[None]:
    """What Typer finds wrong with a command line, as an error like all others. (A group without a command shows its
    help, which Typer makes an error of, too.)"""
    try:
        yield
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        wrong: Any = error
        command = wrong.ctx.command_path if wrong.ctx is not None else "shoal"
        raise ShoalError(WRONG_LINE, wrong.format_message(), f"see `{command} --help`") from None


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _shoal(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    """Train neural networks across whatever machines show up."""
    if version:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit()


def main(arguments: list[str] | None = None) -> None:
    """The console script's entry: always ends in `SystemExit`."""
    try:
        # Ctrl-C and closed pipes are answered in there.
        typer.main.get_command(app).main(arguments, prog_name="shoal")
    except (ShoalError, BaseExceptionGroup, KeyboardInterrupt) as error:
        progress.end()
        sys.exit(_report(error))
    finally:  # Typer answers Ctrl-C by itself, and what it broke off may have left a bar open.
        progress.end()


def _report(error: BaseException) -> int:
    """Tell a person, or re-raise what is not for people."""
    if find(error, KeyboardInterrupt) is not None:
        return 130
    told = find(error, ShoalError)
    if told is None:
        raise error
    cause, next_step = printable(told.cause, LONGEST), printable(told.next_step, LONGEST)
    print(f"error {told.code}\n  what: {cause}\n  next: {next_step}", file=sys.stderr)
    return 2 if told.code == WRONG_LINE else 1


def find(error: BaseException, kind: type[Any]) -> Any:
    """The first exception of this kind in a tree of exception groups, or None."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            if (found := find(inner, kind)) is not None:
                return found
    return None


if __name__ == "__main__":
    main()
