"""Fleet files: how one is found, read and explained when it is wrong.

In flows a path or a shipped fleet's name; out flows a checked `Fleet`, its traces read in. Invariant: whatever the
file holds, the answer is a fleet or one SH-LAB error that names the field by its path in the file.
"""

from __future__ import annotations

import csv
import difflib
import io
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from shoal.base.errors import ShoalError
from shoal.lab.fleet import Fleet, HostSpec, check_whole, names_of
from shoal.lab.links import fleet_to_links, hosts_meant
from shoal.lab.profiles import PROFILES
from shoal.lab.quantities import Mistake

FOLDER = Path(__file__).parent / "fleets"
NEXT_STEP = "see docs/lab.md for every field"
MAX_FILE_BYTES = 10_000_000
COLUMNS: dict[str, tuple[str, float]] = {
    "seconds": ("at", 1.0),
    "up_mbit": ("up", 125_000.0),
    "down_mbit": ("down", 125_000.0),
    "latency_ms": ("latency", 0.001),
    "jitter_ms": ("jitter", 0.001),
    "loss_percent": ("loss", 0.01),
}
"""Columns of a trace file: the field that each is, and its unit."""
LIMITS: dict[int | str, str] = {
    **dict.fromkeys(("up", "down", "rate"), "8 kbit/s (1000 bytes/s) to 100 Gbit/s"),
    **dict.fromkeys(("latency", "rtt", "jitter", "jitter_time"), "0 s to 10 s"),
    "loss": "0 % to 100 %",
    "queue": "3 kB to 2 GB",
}
"""What the schema says in base units, for people."""


def shipped() -> dict[str, Path]:
    """Every fleet of the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find_fleet(name: str) -> Fleet:
    """The fleet meant by a path or a shipped name; a file in the way of a name wins. Raises SH-LAB-01, -02."""
    path = Path(name).expanduser()
    if path.is_file():
        return load_fleet(path)
    if name in shipped():
        return load_fleet(shipped()[name])
    raise ShoalError(
        "SH-LAB-01",
        f"there is no file {name!r}, nor a fleet of this name",
        f"give a YAML file, or one of: {', '.join(shipped())}",
    )


def load_fleet(path: Path) -> Fleet:
    """Read a fleet file. Raises SH-LAB-01 or SH-LAB-02."""
    return parse_fleet(_read(path), where=str(path), folder=path.parent)


def parse_fleet(text: str, *, where: str = "fleet", folder: Path | None = None) -> Fleet:
    """A fleet from YAML (or JSON) text; trace files are looked for in `folder`. Raises SH-LAB-01 or SH-LAB-02."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ShoalError("SH-LAB-01", f"{where}{line} is not YAML: {problem}", "mend the line") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ShoalError(
            "SH-LAB-01", f"{where} cannot be read: {error}", "put odd values in quotes"
        ) from None
    if not isinstance(values, dict):
        raise ShoalError("SH-LAB-01", f"{where} is not a mapping of fields", NEXT_STEP)
    return fleet_from(values, where=where, folder=folder or Path())


def fleet_from(values: dict[str, Any], *, where: str = "fleet", folder: Path | None = None) -> Fleet:
    """A fleet from plain values. Raises SH-LAB-02 (SH-LAB-01 for a trace file that cannot be read)."""
    try:
        fleet = Fleet.model_validate(_with_traces(values, folder or Path()))
        check_whole(fleet)
        _check_profiles(fleet)
    except ValidationError as error:
        raise ShoalError("SH-LAB-02", f"{where}: {_explained(error)}", NEXT_STEP) from None
    except Mistake as error:
        raise ShoalError("SH-LAB-02", f"{where}: {error}", NEXT_STEP) from None
    return fleet


def with_hosts(fleet: Fleet, count: int) -> Fleet:
    """The same fleet with so many hosts: the first ones, or all of them again and again. Regions and `*` keep their
    meaning; pairs, events, traces and commands of hosts that are not there any more are left out."""
    network = fleet_to_links(fleet)
    singles = [
        host.model_copy(update={"name": line.name, "count": 1})
        for host, line in zip(specs_of(fleet), network.lines, strict=True)
    ]
    hosts = []
    for number in range(count):
        turn, place = divmod(number, len(singles))
        host = singles[place]
        hosts.append(host if not turn else host.model_copy(update={"name": f"{host.name}-again-{turn}"}))
    made = fleet.model_copy(update={"hosts": tuple(hosts)})
    there = fleet_to_links(made)

    def known(*names: str) -> bool:
        return all(hosts_meant(there, name) for name in names)

    return made.model_copy(
        update={
            "pairs": tuple(pair for pair in fleet.pairs if known(*pair.between)),
            "events": tuple(
                event
                for event in fleet.events
                if known(*(event.between if hasattr(event, "between") else (event.host,)))
            ),
            "traces": tuple(trace for trace in fleet.traces if known(trace.host)),
            "commands": {who: command for who, command in fleet.commands.items() if known(who)},
        }
    )


def with_host(fleet: Fleet, host: HostSpec) -> Fleet:
    """The same fleet with one host more, which `*` means too. Raises SH-LAB-02 if one is called so already."""
    if host.name in names_of(fleet):
        raise ShoalError(
            "SH-LAB-02",
            f"{fleet.name}: hosts: {host.name!r} is the name of a host that is added here",
            "call yours something else",
        )
    return fleet.model_copy(update={"hosts": (*fleet.hosts, host)})


def specs_of(fleet: Fleet) -> list[HostSpec]:
    """Every host's, in the order of their names."""
    return [host for host in fleet.hosts for _ in range(host.count)]


def _check_profiles(fleet: Fleet) -> None:
    for number, host in enumerate(fleet.hosts):
        if host.profile is not None and host.profile not in PROFILES:
            raise Mistake(f"hosts.{number}.profile: found {host.profile!r}; allowed: {', '.join(PROFILES)}")


# --- trace files -----------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ShoalError("SH-LAB-01", f"{path} is larger than {MAX_FILE_BYTES} bytes", "make it smaller")
        return path.read_text("utf-8-sig")  # Spreadsheets write a mark at the beginning.
    except OSError as error:
        raise ShoalError("SH-LAB-01", f"cannot read {path}: {error}", "check the path") from None
    except UnicodeDecodeError as error:
        raise ShoalError("SH-LAB-01", f"{path} is not text: {error}", "save it as UTF-8 text") from None


def _with_traces(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    traces = values.get("traces")
    if not isinstance(traces, list | tuple):
        return values
    return {**values, "traces": [_with_points(trace, folder) for trace in traces]}


def _with_points(trace: object, folder: Path) -> object:
    if not isinstance(trace, dict) or not isinstance(trace.get("file"), str) or "points" in trace:
        return trace
    path = folder / trace["file"]
    return {**trace, "points": _points(_read(path), str(path))}


def _points(text: str, where: str) -> list[dict[str, float]]:
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = [name.strip() for name in rows.fieldnames or []]
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or "seconds" not in columns:
        what = f"column {unknown[0]!r}" if unknown else "no column 'seconds'"
        raise Mistake(f"{where}: {what}; allowed: {', '.join(COLUMNS)}")
    rows.fieldnames = columns
    points = []
    for number, row in enumerate(rows, 2):
        point = {}
        for name, cell in row.items():
            if name is None or cell is None:
                raise Mistake(f"{where}, line {number}: not {len(columns)} cells")
            field, unit = COLUMNS[name]
            try:
                point[field] = float(cell) * unit
            except ValueError:
                raise Mistake(f"{where}, line {number}, {name}: {cell!r} is not a number") from None
        points.append(point)
    return points


# --- what the schema complains of ------------------------------------------------------------------------


def _explained(error: ValidationError) -> str:
    lines, items = [], error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(_is_within(other["loc"], item["loc"]) for other in items):
            continue  # It is only short of what was wrong in it.
        # Tags by which the schema tells kinds of events apart are no part of the file.
        place = [str(part) for part in item["loc"] if part not in ("cut", "heal", "off", "on", "set")]
        if item["loc"][:1] == ("commands",):
            place = [part for part in place if part not in ("str", "tuple[str, ...]", "[key]")]
        lines.append(f"{'.'.join(place) or 'fleet'}: {_complaint(item)}")
    return "; ".join(dict.fromkeys(lines[:8]))


def _is_within(place: tuple[int | str, ...], of: tuple[int | str, ...]) -> bool:
    return len(place) > len(of) and place[: len(of)] == of


def _complaint(item: Any) -> str:
    context, found = item.get("ctx", {}), item.get("input")
    match item["type"]:
        case "extra_forbidden":
            return f"unknown field{_close(str(item['loc'][-1]))}"
        case "missing":
            return "missing"
        case "value_error":
            return str(context["error"])
        case "too_short":
            return f"has {context['actual_length']}; allowed: at least {context['min_length']}"
        case "greater_than_equal" | "less_than_equal" if item["loc"][-1] in LIMITS:
            return f"found {found!r}; allowed: {LIMITS[item['loc'][-1]]}"
        case "union_tag_invalid" | "union_tag_not_found":
            return f"do: found {found.get('do') if isinstance(found, dict) else found!r}; allowed: " + (
                "cut, heal, off, on, set"
            )
        case _:
            shown = (
                repr(found) if isinstance(found, str | int | float | bool | None) else type(found).__name__
            )
            return f"found {shown[:80]}; allowed: {item['msg'].removeprefix('Input should be ')}"


def _close(name: str) -> str:
    known = sorted({field for model in _models() for field in model.model_fields})
    if name in known:
        return " here"
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _models() -> list[type[BaseModel]]:
    from shoal.lab import fleet as schema

    return [
        value
        for value in vars(schema).values()
        if isinstance(value, type) and issubclass(value, schema.Section)
    ]
