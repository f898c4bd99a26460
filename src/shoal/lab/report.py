"""What a lab run was like, and whether its figures may be believed.

In flow accuracy, lateness, processor use and what the programs did; out flows a `Report`: values for tools, a table
for people. Invariant: `valid` is true exactly if `reasons` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.lab.accuracy import LATE_P99_LIMIT_S, Compared
from shoal.lab.cpu import CpuUse

SATURATED_LIMIT = 0.05
OVERRUN_LIMIT = 0.05
DROP_LIMIT = 1e-4
LATE_COUNTED = 100
"""So few packets say nothing of a 99th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """One host's programs and traffic."""

    name: str
    codes: tuple[int | None, ...]
    """Exit statuses in order; None for what had to be ended."""
    sent_bytes: int
    received_bytes: int
    lost_packets: int
    queue_drops: int
    unread_drops: int
    """Packets that the emulator did not take in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    at_s: float
    late_s: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceUse:
    """What paced programs wrote down: how long devices would have computed, and how much longer it took."""

    paced_s: float = 0.0
    overrun_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    fleet: str
    emulator: str
    doorway: str
    privileged: bool
    congestion: str
    kernel: str
    seconds: float
    accuracy: tuple[Compared, ...]
    late_p50_s: float | None
    late_p99_s: float | None
    late_packets: int
    late_probes_p99_s: float | None
    """Of the probes, before the programs began."""
    cpu: CpuUse
    pace: PaceUse
    hosts: tuple[HostReport, ...]
    events: tuple[Happened, ...]
    probed: bool
    timed_out: bool = False
    emulator_ended: bool = False
    reasons: tuple[str, ...] = field(default=())

    @property
    def valid(self) -> bool:
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        late = {
            "p50": _ms(self.late_p50_s),
            "p99": _ms(self.late_p99_s),
            "packets": self.late_packets,
            "probes_p99": _ms(self.late_probes_p99_s),
        }
        about = ("fleet", "emulator", "doorway", "privileged", "congestion", "kernel", "seconds", "timed_out")
        return {
            "valid": self.valid,
            "reasons": list(self.reasons),
            **{name: getattr(self, name) for name in about},
            "lateness_ms": late,
            "accuracy": [{**asdict(item), "off": item.off} for item in self.accuracy],
            "cpu": asdict(self.cpu),
            "pace": asdict(self.pace),
            "hosts": [asdict(host) for host in self.hosts],
            "events": [asdict(event) for event in self.events],
        }


def why_invalid(report: Report) -> tuple[str, ...]:
    """Every reason not to believe this run's figures."""
    found: list[str] = []
    if report.emulator_ended:
        found.append("the emulator ended in the middle of the run")
    if not report.probed:
        found.append("the emulation was not measured")
    found += [item.words() for item in report.accuracy if item.off]
    late = report.late_p99_s if report.late_packets >= LATE_COUNTED else report.late_probes_p99_s
    if late is not None and late > LATE_P99_LIMIT_S:
        found.append(
            f"one packet in a hundred was over {1e3 * late:.2f} ms late (limit {1e3 * LATE_P99_LIMIT_S:g})"
        )
    if report.cpu.saturated_share > SATURATED_LIMIT:
        share, cores = report.cpu.saturated_share, report.cpu.cores
        found.append(
            f"the {cores} processors were saturated {share:.0%} of the time (limit {SATURATED_LIMIT:.0%})"
        )
    if report.pace.overrun_s > OVERRUN_LIMIT * report.pace.paced_s:
        over = report.pace.overrun_s / report.pace.paced_s if report.pace.paced_s else 1.0
        found.append(f"paced programs took {over:.0%} longer than their devices would have")
    found += _dropped(report.hosts, report.late_packets)
    return tuple(found)


def _dropped(hosts: Sequence[HostReport], packets: int) -> list[str]:
    unread = sum(host.unread_drops for host in hosts)
    if unread <= DROP_LIMIT * packets:
        return []
    return [f"{unread} packets were dropped because the emulator did not take them in time"]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 4)
