"""What a fleet's network is at every moment, as plain values: for the emulators, and for a simulator.

In flows a `Fleet`; out flow its `Network` (each host's line, each pair's path) and its timeline of changes, lazily
and for ever. Invariant: pure; the same fleet gives the same network and the same timeline everywhere.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from shoal.lab.fleet import EVERYONE, Cut, Fleet, Heal, HostSpec, LinkSpec, Off, On, PairSpec, Set, Trace
from shoal.lab.profiles import profile

QUEUE_S = 0.1
LEAST_QUEUE_BYTES = 64 * 1024
JITTER_TIME_S = 0.2
_TUNED = ("up", "down", "latency", "jitter", "jitter_time", "loss", "queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One host and its line to the core. A rate of 0 is without limit."""

    name: str
    region: str = ""
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    latency_s: float = 0.0
    jitter_s: float = 0.0
    jitter_time_s: float = JITTER_TIME_S
    loss: float = 0.0
    queue: float | None = None
    speed: float = 1.0
    on: bool = True

    def queue_bytes(self, rate_bytes_s: float) -> float:
        """What may wait before a line of this rate: as given, else a tenth of a second's worth."""
        return self.queue if self.queue is not None else max(LEAST_QUEUE_BYTES, QUEUE_S * rate_bytes_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a packet meets between the lines of its sender and its receiver."""

    latency_s: float
    jitter_s: float
    jitter_time_s: float
    loss: float
    rate_bytes_s: float = 0.0
    open: bool = True


@dataclass(frozen=True, slots=True)
class Between:
    """Paths are cut, or healed: (from, to), by name."""

    ways: frozenset[tuple[str, str]]
    cut: bool


@dataclass(frozen=True, slots=True)
class Power:
    """Hosts go off, or on."""

    hosts: tuple[str, ...]
    on: bool


@dataclass(frozen=True, slots=True)
class Tune:
    """Hosts' lines change; by field of `LinkSpec`, in base units."""

    hosts: tuple[str, ...]
    values: Mapping[str, float]


Change = Between | Power | Tune


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change and when it comes, in seconds after the start; `what` is for people."""

    at_s: float
    what: str
    change: Change = field(compare=False)


@dataclass(frozen=True)
class Network:
    """Every line and path at one moment."""

    lines: tuple[Line, ...]
    pairs: tuple[PairSpec, ...] = ()
    cut: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def names(self) -> dict[str, int]:
        """Hosts by name, with their places."""
        return {line.name: place for place, line in enumerate(self.lines)}

    def path(self, sender: str, receiver: str) -> Path:
        """From one host to another, the pairs' overrides included."""
        a, b = self.lines[self.names[sender]], self.lines[self.names[receiver]]
        path = Path(
            latency_s=a.latency_s + b.latency_s,
            jitter_s=math.hypot(a.jitter_s, b.jitter_s),
            jitter_time_s=max(a.jitter_time_s, b.jitter_time_s),
            loss=1 - (1 - a.loss) * (1 - b.loss),
            open=a.on and b.on and (sender, receiver) not in self.cut,
        )
        for pair in self.pairs:
            first, second = pair.between
            if (_is(a, first) and _is(b, second)) or (_is(a, second) and _is(b, first)):
                path = _overridden(path, pair)
        return path

    def rate_bytes_s(self, sender: str, receiver: str) -> float:
        """The narrowest place on the way; 0 if there is none."""
        a, b = self.lines[self.names[sender]], self.lines[self.names[receiver]]
        rates = [r for r in (a.up_bytes_s, b.down_bytes_s, self.path(sender, receiver).rate_bytes_s) if r]
        return min(rates, default=0.0)

    def after(self, change: Change) -> Network:
        """The network once this has happened."""
        match change:
            case Between(ways, cut):
                return replace(self, cut=self.cut | ways if cut else self.cut - ways)
            case Power(hosts, on):
                return self._with({name: {"on": on} for name in hosts})
            case Tune(hosts, values):
                return self._with({name: _line_values(values) for name in hosts})

    def _with(self, values: Mapping[str, Mapping[str, float]]) -> Network:
        lines = tuple(
            replace(line, **values[line.name]) if line.name in values else line  # type: ignore[arg-type]
            for line in self.lines
        )
        return replace(self, lines=lines)


def fleet_to_links(fleet: Fleet) -> Network:
    """The network before anything has happened."""
    lines = []
    for host in fleet.hosts:
        tuned = _tuned(fleet, host)
        numbers = [""] if host.count == 1 else [f"-{n}" for n in range(1, host.count + 1)]
        for number in numbers:
            line = Line(name=host.name + number, region=host.region or "", speed=host.speed)
            lines.append(replace(line, **_line_values(tuned)))  # type: ignore[arg-type]
    return Network(tuple(lines), fleet.pairs)


def timeline(fleet: Fleet) -> Iterator[Step]:
    """Everything that will change, in order; endless where a trace repeats or hosts come and go."""
    network = fleet_to_links(fleet)
    sources: list[Iterator[Step]] = [iter(sorted(_events(fleet, network), key=lambda step: step.at_s))]
    sources += [_trace(trace, network) for trace in fleet.traces]
    for host in fleet.hosts:
        if host.online and host.offline:
            names = [line.name for line in network.lines if _made_from(line.name, host)]
            sources += [_coming_and_going(fleet.seed, name, host.online, host.offline) for name in names]
    return heapq.merge(*sources, key=lambda step: step.at_s)


def hosts_meant(network: Network, who: str) -> tuple[str, ...]:
    """The hosts that a name, a region or `*` stands for."""
    return tuple(line.name for line in network.lines if _is(line, who))


def _is(line: Line, who: str) -> bool:
    return who in (EVERYONE, line.name) or (bool(line.region) and who == line.region)


def _made_from(name: str, host: HostSpec) -> bool:
    if host.count == 1:
        return name == host.name
    return name in {f"{host.name}-{n}" for n in range(1, host.count + 1)}


def _overridden(path: Path, pair: PairSpec) -> Path:
    values = {
        "latency_s": pair.latency if pair.rtt is None else pair.rtt / 2,
        "jitter_s": pair.jitter,
        "jitter_time_s": pair.jitter_time,
        "loss": pair.loss,
        "rate_bytes_s": pair.rate,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return replace(path, **given)  # type: ignore[arg-type]


def _tuned(fleet: Fleet, host: HostSpec) -> dict[str, float]:
    """The host's own values, then its profile's, then the fleet's defaults."""
    values: dict[str, float] = {}
    layers: list[LinkSpec] = [fleet.defaults, *([profile(host.profile)] if host.profile else []), host]
    for layer in layers:
        values |= _given(layer)
    return values


def _given(spec: LinkSpec) -> dict[str, float]:
    found = {name: getattr(spec, name, None) for name in _TUNED}
    return {name: value for name, value in found.items() if value is not None}


_FIELDS = {
    "up": "up_bytes_s",
    "down": "down_bytes_s",
    "latency": "latency_s",
    "jitter": "jitter_s",
    "jitter_time": "jitter_time_s",
    "loss": "loss",
    "queue": "queue",
}


def _line_values(values: Mapping[str, float]) -> dict[str, float]:
    return {_FIELDS[name]: value for name, value in values.items()}


# --- the timeline ----------------------------------------------------------------------------------------


def _events(fleet: Fleet, network: Network) -> Iterator[Step]:
    for event in fleet.events:
        match event:
            case Cut() | Heal():
                yield from _cutting(event, network)
            case Off() | On():
                hosts = hosts_meant(network, event.host)
                on = isinstance(event, On)
                yield Step(at_s=event.at, what=f"{event.do} {event.host}", change=Power(hosts, on))
                if isinstance(event, Off) and event.lasts:
                    yield Step(
                        at_s=event.at + event.lasts, what=f"on {event.host}", change=Power(hosts, True)
                    )
            case Set():
                hosts, values = hosts_meant(network, event.host), _given(event)
                shown = _in_words(values)
                yield Step(at_s=event.at, what=f"set {event.host} {shown}", change=Tune(hosts, values))


def _in_words(values: Mapping[str, float]) -> str:
    units = {"up": (8e-6, "Mbit/s"), "down": (8e-6, "Mbit/s"), "loss": (100.0, "%"), "queue": (1e-3, "kB")}
    found = []
    for name, value in values.items():
        factor, unit = units.get(name, (1e3, "ms"))
        found.append(f"{name} {factor * value:g} {unit}")
    return ", ".join(found)


def _cutting(event: Cut | Heal, network: Network) -> Iterator[Step]:
    first, second = event.between
    one_way = isinstance(event, Cut) and event.one_way
    ways = _ways(network, first, second, one_way)
    named = f"{first} {'->' if one_way else '-'} {second}"
    yield Step(at_s=event.at, what=f"{event.do} {named}", change=Between(ways, isinstance(event, Cut)))
    if isinstance(event, Cut) and event.lasts:
        yield Step(at_s=event.at + event.lasts, what=f"heal {named}", change=Between(ways, False))


def _ways(network: Network, first: str, second: str, one_way: bool) -> frozenset[tuple[str, str]]:
    there = {(a, b) for a in hosts_meant(network, first) for b in hosts_meant(network, second) if a != b}
    return frozenset(there if one_way else there | {(b, a) for a, b in there})


def _trace(trace: Trace, network: Network) -> Iterator[Step]:
    hosts, began = hosts_meant(network, trace.host), 0.0
    last = trace.points[-1].at
    # The last row holds as long as the one before it did.
    length = last + (last - trace.points[-2].at if len(trace.points) > 1 else 1.0)
    while True:
        for point in trace.points:
            values = point.model_dump(exclude={"at"}, exclude_none=True)
            shown = _in_words(values)
            yield Step(at_s=began + point.at, what=f"trace {trace.host} {shown}", change=Tune(hosts, values))
        if not trace.repeat:
            return
        began += length


def _coming_and_going(seed: int, name: str, online_s: float, offline_s: float) -> Iterator[Step]:
    rng, at = random.Random(f"{seed}/{name}/power"), 0.0  # noqa: S311 (a schedule, not a secret)
    while True:
        at += rng.expovariate(1 / online_s)
        yield Step(at_s=at, what=f"off {name}", change=Power((name,), False))
        at += rng.expovariate(1 / offline_s)
        yield Step(at_s=at, what=f"on {name}", change=Power((name,), True))
