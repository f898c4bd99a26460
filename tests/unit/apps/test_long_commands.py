"""Every command is live, quick, or tells how far it is."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.apps import cli

SHOWING = {"Bar", "tracked", "lasting", "growing"}
LIVE = """
serve, join, group, hub, pool join, top, demo, chain up
"""
"""They go on until they are told to stop, or have a screen of their own."""
QUICK = """
pool list, keys show, keys rotate, keys revoke, run list, run show, run stop, run pause, run resume, run change,
run rewind, run fund, run ban, run unban, run ticket, log show, lab list, lab show, bench frontier, chain payout
"""
"""One question to a coordinator, or one small file; and what prints line after line anyway."""


def _names(listed: str) -> set[str]:
    return {" ".join(name.split()) for name in listed.split(",")}


def _commands(found: Any, path: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    if not hasattr(found, "commands"):
        yield path, inspect.unwrap(found.callback)
        return
    for name, inner in found.commands.items():
        yield from _commands(inner, f"{path} {name}")


COMMANDS = {
    path: function
    for name, entry in cli.COMMANDS.items()
    for path, function in _commands(cli.LazyCommand(name, entry).load(), name)
}
LONG = sorted(COMMANDS.keys() - _names(LIVE) - _names(QUICK))


def test_the_lists_name_commands_that_there_are() -> None:
    assert _names(LIVE) | _names(QUICK) <= COMMANDS.keys()
    assert not _names(LIVE) & _names(QUICK)


@pytest.mark.parametrize("command", LONG)
def test_what_can_take_long_tells_how_far_it_is(command: str) -> None:
    function = COMMANDS[command]
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    if command.startswith(
        "bench "
    ):  # Its runner's bar knows no end: what each of them imports must have one.
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert used & SHOWING or any(map(_shows, _imported(tree)))
    else:
        assert _shows(function.__module__)


def test_whether_a_module_tells_is_found_out() -> None:
    assert _shows("shoal.apps.bench.overlapping") and _shows("shoal.apps.bench.plan")
    assert not _shows("shoal.apps.home") and not _shows("shoal.apps.bench.quantisers")


def _shows(module: str) -> bool:
    """Whether it, or what it imports of the commands' modules, has a bar."""
    seen, left = {module}, [module]
    while left:
        imported = _imports_of(left.pop())
        if imported.get("shoal.apps.progress", set()) & SHOWING:
            return True
        left += sorted(imported.keys() - seen)
        seen |= imported.keys()
    return False


def _imported(tree: ast.AST) -> dict[str, set[str]]:
    """The commands' modules that are imported, with the names."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal.apps"):
            names = {name.name for name in node.names}
            found.setdefault(node.module or "", set()).update(names)
            for name in names:
                if _file(f"{node.module}.{name}"):
                    found.setdefault(f"{node.module}.{name}", set())
    return found


@functools.cache
def _imports_of(module: str) -> dict[str, set[str]]:
    path = _file(module)
    return _imported(ast.parse(path.read_text("utf-8"))) if path else {}


@functools.cache
def _file(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None
