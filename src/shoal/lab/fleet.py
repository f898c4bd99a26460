"""A fleet: hosts, the links between them, what changes when, and which programs run where. Frozen and validated.

In flow plain values (YAML was read in `library.py`); out flows a `Fleet`, or an error that names the field.
Invariant: names in pairs, events, traces and commands are names that the fleet has.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shoal.lab.quantities import Delay, Fraction, Mistake, Moment, Rate, Size, Span

MAX_HOSTS = 4096
LEAST_ROW_S = 0.001
"""Rows of a trace are so far apart at least: else one that repeats would leave no time for anything."""
EVERYONE = "*"
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
Who = Annotated[str, Field(pattern=r"^(\*|[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?)$")]
"""A host's name, a region's, or `*` for everyone."""
Both = Annotated[tuple[Who, Who], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class LinkSpec(Section):
    """A host's line to the core of the network. What is not given comes from the profile, else from `Line`."""

    up: Rate | None = None
    down: Rate | None = None
    latency: Delay | None = None
    """One way, from the host to the core. A packet from a to b takes a's latency plus b's."""
    jitter: Delay | None = None
    """Standard deviation of the latency, which wanders slowly (see `jitter_time`); packets keep their order."""
    jitter_time: Delay | None = None
    """How long the latency remembers: about so long after a slow moment it is still slow."""
    loss: Fraction | None = None
    """Of the packets in each direction."""
    queue: Size | None = None
    """Bytes that wait before the bottleneck, in each direction; what comes on top is dropped."""


class HostSpec(LinkSpec):
    """One host, or `count` alike."""

    name: Name
    count: int = Field(default=1, ge=1, le=MAX_HOSTS)
    """More than one are named name-1, name-2 and so on."""
    profile: str | None = None
    region: Name | None = None
    speed: float = Field(default=1.0, gt=0, le=1000)
    """Of its device: how many times faster it computes than the fleet's slowest reference, which is 1."""
    online: Span | None = None
    """With `offline`: it stays on for so long on average (exponentially drawn), then is off for a while."""
    offline: Span | None = None


class PairSpec(Section):
    """What holds between two hosts, regions or everyone instead of the sum of their lines. Later ones win."""

    between: Both
    rtt: Delay | None = None
    latency: Delay | None = None
    """One way; half of `rtt`. Give one of the two."""
    jitter: Delay | None = None
    jitter_time: Delay | None = None
    loss: Fraction | None = None
    rate: Rate | None = None
    """A bottleneck of this pair alone, in each direction, beside the hosts' own."""


class _Event(Section):
    at: Moment
    """Seconds after the programs start."""


class Cut(_Event):
    """No packet passes any more; nobody is told."""

    do: Literal["cut"]
    between: Both
    one_way: bool = False
    """Only from the first to the second."""
    lasts: Span | None = None
    """Heal after so long."""


class Heal(_Event):
    do: Literal["heal"]
    between: Both


class Off(_Event):
    """The host goes to sleep: its programs stop and its line is dead, until `on`."""

    do: Literal["off"]
    host: Who
    lasts: Span | None = None


class On(_Event):
    do: Literal["on"]
    host: Who


class Set(_Event, LinkSpec):
    """Its line changes: a rate step, say. What is not given stays."""

    do: Literal["set"]
    host: Who


Event = Annotated[Cut | Heal | Off | On | Set, Field(discriminator="do")]


class TracePoint(Section):
    """One row of a trace: from here on. Plain numbers in base units, whatever the file's columns had."""

    at: float = Field(ge=0, le=1e9)
    up: float | None = Field(default=None, ge=1000, le=1.25e10)
    down: float | None = Field(default=None, ge=1000, le=1.25e10)
    latency: float | None = Field(default=None, ge=0, le=10)
    jitter: float | None = Field(default=None, ge=0, le=10)
    loss: float | None = Field(default=None, ge=0, le=1)


class Trace(Section):
    """A host's line as it was recorded somewhere."""

    host: Who
    file: str | None = None
    """A CSV file, beside the fleet file: `seconds` and some of up_mbit, down_mbit, latency_ms, jitter_ms,
    loss_percent."""
    points: tuple[TracePoint, ...] = Field(default=(), max_length=100_000)
    repeat: bool = True
    """Begin again at the end."""


class Command(Section):
    """What one host runs."""

    run: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Text goes to `sh -c`; a list is started as it is."""
    background: bool = False
    """The lab does not wait for it, but ends it when all others are done."""
    after: Span | None = None
    """Start so long after the others."""


class Fleet(Section):
    """Everything that a fleet file says."""

    name: str = Field(default="fleet", min_length=1, max_length=80)
    description: str = Field(default="", max_length=2000)
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of losses, jitter, and who is on when."""
    congestion: str | None = Field(default=None, pattern=r"^[a-z0-9_]{1,15}$")
    """TCP's congestion control in every host: bbr if the kernel has it, else cubic, else reno."""
    step: Span | None = None
    """What one training step takes a device of speed 1; paced programs wait it out."""
    mtu: int = Field(default=1500, ge=576, le=9000)
    defaults: LinkSpec = LinkSpec()
    hosts: tuple[HostSpec, ...] = Field(min_length=1, max_length=MAX_HOSTS)
    pairs: tuple[PairSpec, ...] = Field(default=(), max_length=10_000)
    events: tuple[Event, ...] = Field(default=(), max_length=10_000)
    traces: tuple[Trace, ...] = Field(default=(), max_length=MAX_HOSTS)
    commands: dict[Who, Command] = Field(default_factory=dict)

    @field_validator("events", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        """YAML takes a bare `on` or `off` for true or false."""
        if not isinstance(value, list | tuple):
            return value
        return [
            {**event, "do": "on" if event["do"] else "off"}
            if isinstance(event, dict) and isinstance(event.get("do"), bool)
            else event
            for event in value
        ]

    @field_validator("commands", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """`host: text` is short for `host: {run: text}`."""
        if not isinstance(value, dict):
            return value
        return {
            who: {"run": what} if isinstance(what, str | list | tuple) else what
            for who, what in value.items()
        }


def names_of(fleet: Fleet) -> tuple[str, ...]:
    """Every host's name, in order."""
    names: list[str] = []
    for host in fleet.hosts:
        names += [host.name] if host.count == 1 else [f"{host.name}-{n}" for n in range(1, host.count + 1)]
    return tuple(names)


def check_whole(fleet: Fleet) -> None:
    """Raise `Mistake` for what is wrong between fields: names that nobody has, or that two have; halves."""
    for n, host in enumerate(fleet.hosts):
        if (host.online is None) != (host.offline is None):
            raise Mistake(f"hosts.{n}: online and offline go together")
    for n, pair in enumerate(fleet.pairs):
        if pair.rtt is not None and pair.latency is not None:
            raise Mistake(f"pairs.{n}: give rtt or latency, not both")
    for n, trace in enumerate(fleet.traces):
        if not trace.points:
            raise Mistake(f"traces.{n}: give a file with rows, or points")
        if any(b.at <= a.at for a, b in pairwise(trace.points)):
            raise Mistake(f"traces.{n}: times must rise from row to row")
        if any(b.at - a.at < 0.999 * LEAST_ROW_S for a, b in pairwise(trace.points)):
            raise Mistake(f"traces.{n}: rows less than {1e3 * LEAST_ROW_S:g} ms apart")
    for n, event in enumerate(fleet.events):
        if isinstance(event, Set) and all(getattr(event, name) is None for name in LinkSpec.model_fields):
            raise Mistake(f"events.{n}: changes nothing; give any of {', '.join(LinkSpec.model_fields)}")
    _check_names(fleet)


def _check_names(fleet: Fleet) -> None:
    names = names_of(fleet)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Mistake(f"hosts: two hosts are called {twice[0]!r}")
    if len(names) > MAX_HOSTS:
        raise Mistake(f"hosts: {len(names)} of them; allowed: at most {MAX_HOSTS}")
    known = {EVERYONE, *names, *(host.region for host in fleet.hosts if host.region)}
    for where, who in _mentioned(fleet):
        if who not in known:
            listed = ", ".join(sorted(known)[:12])
            raise Mistake(f"{where}: {who!r} is neither a host nor a region; there are: {listed}")


def _mentioned(fleet: Fleet) -> list[tuple[str, str]]:
    found = [(f"pairs.{n}.between", who) for n, pair in enumerate(fleet.pairs) for who in pair.between]
    for n, event in enumerate(fleet.events):
        match event:
            case Cut() | Heal():
                found += [(f"events.{n}.between", who) for who in event.between]
            case _:
                found.append((f"events.{n}.host", event.host))
    found += [(f"traces.{n}.host", trace.host) for n, trace in enumerate(fleet.traces)]
    return found + [("commands", who) for who in fleet.commands]
