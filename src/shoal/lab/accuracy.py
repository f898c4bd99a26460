"""What links should be like against what probes found: is the emulation exact enough to believe?

In flow a network and measurements; out flow, for each pair that was probed, both values, and reasons where they are
too far apart. Invariant: pure; tolerances grow only by what chance explains (few packets, wandering jitter).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from shoal.lab.links import Network, hosts_meant

MOST_PAIRS = 48
SMALL_WIRE_BYTES, LATE_P99_LIMIT_S = 106, 0.001
RTT_SHARE, RTT_LEAST_S, RATE_SHARE, LOSS_LEAST = 0.05, 0.001, 0.05, 0.002
SIGMAS = 3.5
"""With a hundred probes, chance alone crosses this once in some twenty runs' worth of them."""
LATE_FIRST_S, LATE_GROWTH = 1e-5, 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Probes of one pair. None where it was not probed."""

    sender: str
    receiver: str
    rtt_s: float | None = None
    loss: float | None = None
    packets: int = 0
    seconds: float = 0.0
    rate_bytes_s: float | None = None
    rate_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One property of one pair. Milliseconds, Mbit/s or per cent."""

    pair: str
    what: str
    expected: float
    measured: float
    tolerance: float

    @property
    def off(self) -> bool:
        return abs(self.measured - self.expected) > self.tolerance

    def words(self) -> str:
        return f"{self.what} of {self.pair}: expected {self.expected:.4g}, measured {self.measured:.4g}"


def pairs_to_probe(network: Network) -> list[tuple[str, str]]:
    """Every host to its neighbour in a ring, and one pair for each override."""
    names = list(network.names)
    if len(names) < 2:
        return []
    ring = [(name, names[(place + 1) % len(names)]) for place, name in enumerate(names)]
    special = []
    for spec in network.pairs:
        first, second = (hosts_meant(network, who) for who in spec.between)
        special += list(islice(((a, b) for a in first for b in second if a != b), 1))
    return list(dict.fromkeys(special + ring))[:MOST_PAIRS]


def expected_rate(network: Network, sender: str, receiver: str) -> float:
    """Bytes a second that arrive when more is sent than the way takes; 0 if nothing limits it."""
    a, b = network.lines[network.names[sender]], network.lines[network.names[receiver]]
    path = network.path(sender, receiver)
    rates = [a.up_bytes_s * (1 - path.loss), b.down_bytes_s, path.rate_bytes_s]
    return min((rate for rate in rates if rate), default=0.0)


def compare(network: Network, measured: list[Measured]) -> list[Compared]:
    """Expected against measured, for everything that was probed."""
    return [item for one in measured for item in _compare(network, one)]


def _compare(network: Network, one: Measured) -> Iterator[Compared]:
    there, back = network.path(one.sender, one.receiver), network.path(one.receiver, one.sender)
    pair = f"{one.sender}->{one.receiver}"
    if one.rtt_s is not None:
        narrow = [
            network.rate_bytes_s(*way) for way in ((one.sender, one.receiver), (one.receiver, one.sender))
        ]
        expected = (
            there.latency_s + back.latency_s + sum(2 * SMALL_WIRE_BYTES / rate for rate in narrow if rate)
        )
        wander = math.hypot(there.jitter_s, back.jitter_s)
        remembered = max(there.jitter_time_s, back.jitter_time_s)
        unsure = SIGMAS * wander * math.sqrt(min(1.0, 2 * remembered / max(one.seconds, 1e-3)))
        tolerance = max(RTT_LEAST_S, RTT_SHARE * expected) + unsure
        yield _in(1e3, pair, "rtt_ms", expected, one.rtt_s, tolerance)
    if one.loss is not None:
        unsure = SIGMAS * math.sqrt(max(there.loss * (1 - there.loss), 1e-6) / max(1, one.packets))
        yield _in(100, pair, "loss_percent", there.loss, one.loss, LOSS_LEAST + unsure)
    if one.rate_bytes_s is not None:
        expected = expected_rate(network, one.sender, one.receiver)
        packets = max(1.0, expected * one.rate_seconds / 1514)
        unsure = SIGMAS * (
            1.5 * there.jitter_s / max(one.rate_seconds, 1e-3) + math.sqrt(there.loss / packets)
        )
        yield _in(8e-6, pair, "rate_mbit", expected, one.rate_bytes_s, expected * (RATE_SHARE + unsure))


def _in(unit: float, pair: str, what: str, expected: float, measured: float, tolerance: float) -> Compared:
    values = {"expected": expected, "measured": measured, "tolerance": tolerance}
    return Compared(pair=pair, what=what, **{name: value * unit for name, value in values.items()})


def late_quantile(counts: list[int], share: float) -> float | None:
    """How late packets left the emulator, in seconds: the upper bound of the quantile's bucket; None without any."""
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return float(LATE_FIRST_S * LATE_GROWTH**bucket)
    return None
