"""Options that several commands have, written once: a group is a dataclass, and a command has it as one parameter.

In flows a command with groups among its parameters; out flows the command that typer sees, with an option for every
field of a group. Invariant: what `--help` shows and what is parsed is the same as if every option were written out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

RunName = Annotated[
    str, typer.Argument(help="The run's id or its beginning; may be left out if there is one.")
]
RunOption = Annotated[str, typer.Option("--run", help="The run's id or its beginning, if there are several.")]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Where things live (default ~/.shoal).")]
StoreOption = Annotated[str | None, typer.Option("--store", help="sqlite:///PATH or postgresql://...")]
NodeOption = Annotated[bool, typer.Option("--node", help="A node's copy instead of the coordinator's.")]
FileOption = Annotated[Path | None, typer.Option("--file", help="A node's log file, .../logs/RUN.log.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For tools.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """Where a coordinator's things lie."""

    home: HomeOption = None
    store: StoreOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where a run's log lies: the coordinator's store, a node's copy, or a file."""

    home: HomeOption = None
    store: StoreOption = None
    node: NodeOption = False
    file: FileOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog(LogPlace):
    """One run's log, and how the answer is to be given."""

    run: RunName = ""
    as_json: JsonOption = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The same command with the fields of its groups as options of its own."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            options = _options(kind)
            groups[parameter.name] = (kind, [option.name for option in options])
            parameters += options
        else:
            default = parameter.default
            parameters.append(
                inspect.Parameter(
                    parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
                )
            )

    @wraps(command)
    def flat(**values: Any) -> None:
        made = {
            name: kind(**{one: values.pop(one) for one in names}) for name, (kind, names) in groups.items()
        }
        command(**values, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def _options(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(group)
    ]


def say(fields: dict[str, Any], line: str, as_json: bool) -> None:
    """A command's answer: one JSON object for tools, or words."""
    print(json.dumps(fields) if as_json else line)
