"""A run as a curve: validation loss against time, bytes and cost, read off its log.

In flow entries with their times, and what was moved meanwhile; out flow points. Invariant: the clock starts with the
first plan, so that nobody is charged for how long a fleet took to come up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from shoal.runlog.entries import Attestation, Attestations, Claim, Entry, Plan, Seal
from shoal.wire.signed import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a fleet costs, in whatever money."""

    device_hour: float = 0.05
    """An hour of a device of speed 1; one of speed s costs s times as much."""
    gigabyte: float = 0.02
    """Sent by anybody."""

    def cost(self, seconds: float, speeds: float, sent_bytes: float) -> float:
        """Of devices with these speeds together, for so long."""
        return seconds / 3600 * speeds * self.device_hour + sent_bytes / 1e9 * self.gigabyte


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    seconds: float
    loss: float
    sent_bytes: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one recipe did on one fleet."""

    name: str
    points: tuple[Point, ...]
    seconds: float
    rounds: int
    steps: int
    samples: int
    sent_bytes: int
    cost: float
    utilisation: float
    reasons: tuple[str, ...] = ()
    """Of every plan, in order."""
    ended: str = ""

    def seconds_to(self, loss: float) -> float:
        """When the loss was first as low as this, on the line between two validations; infinite if never."""
        before: Point | None = None
        for point in self.points:
            if point.loss <= loss:
                if before is None or before.loss <= point.loss:
                    return point.seconds
                share = (before.loss - loss) / (before.loss - point.loss)
                return before.seconds + share * (point.seconds - before.seconds)
            before = point
        return math.inf

    @property
    def best(self) -> float:
        return min((point.loss for point in self.points), default=math.inf)

    @property
    def best_trained(self) -> float:
        """The lowest loss of a state that training made; infinite if none was validated."""
        return min((point.loss for point in self.points if point.seconds > 0), default=math.inf)


@dataclass(slots=True)
class CurveReader:
    """Takes a log's entries in order."""

    speeds: float
    """Of all devices together."""
    prices: Prices = field(default_factory=Prices)
    first_loss: float | None = None
    """Of the state that all begin with, if it is known."""
    points: list[Point] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    rounds: int = 0
    steps: int = 0
    samples: int = 0
    began_ms: int | None = None
    ended_ms: int = 0
    _sealed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By position of a seal: its time, and what was sent until then."""

    def take(self, entry: Entry, sent_bytes: int) -> None:
        body = entry.body
        if isinstance(body, Plan):
            self.began_ms = entry.time_ms if self.began_ms is None else self.began_ms
            self.reasons.append(body.reason)
        elif isinstance(body, Seal):
            self._seal(body, entry, sent_bytes)
        elif isinstance(body, Attestations):
            for signed in body.items:
                self._word(parse(signed.payload, Attestation))

    def _seal(self, seal: Seal, entry: Entry, sent_bytes: int) -> None:
        claims = [parse(item.claim.payload, Claim) for item in seal.accepted]
        self.rounds += 1
        self.steps += sum(claim.steps for claim in claims if claim)
        self.samples += sum(claim.samples for claim in claims if claim)
        self.ended_ms = entry.time_ms
        self._sealed[entry.position] = (entry.time_ms, sent_bytes)

    def _word(self, word: Attestation | None) -> None:
        if word is None or word.validation is None or not math.isfinite(word.validation):
            return
        time_ms, sent_bytes = self._sealed[word.at.position]
        self.points.append(
            Point(
                seconds=self.seconds(time_ms),
                loss=word.validation,
                sent_bytes=sent_bytes,
                cost=self.cost(time_ms, sent_bytes),
            )
        )
        self.points.sort(key=lambda point: point.seconds)

    def __post_init__(self) -> None:
        if self.first_loss is not None and math.isfinite(self.first_loss):
            self.points.append(Point(seconds=0.0, loss=self.first_loss, sent_bytes=0, cost=0.0))

    def seconds(self, time_ms: int) -> float:
        return (time_ms - (self.began_ms or time_ms)) / 1000

    def cost(self, time_ms: int, sent_bytes: int) -> float:
        return self.prices.cost(self.seconds(time_ms), self.speeds, sent_bytes)

    @property
    def loss(self) -> float:
        """The latest; infinite while there is none."""
        return self.points[-1].loss if self.points else math.inf

    def curve(self, name: str, *, sent_bytes: int, utilisation: float, ended: str = "") -> Curve:
        return Curve(
            name=name,
            points=tuple(self.points),
            seconds=self.seconds(self.ended_ms),
            rounds=self.rounds,
            steps=self.steps,
            samples=self.samples,
            sent_bytes=sent_bytes,
            cost=self.cost(self.ended_ms, sent_bytes),
            utilisation=utilisation,
            reasons=tuple(self.reasons),
            ended=ended,
        )


def with_bytes(curve: Curve, sent_bytes: int, speeds: float, prices: Prices) -> Curve:
    """A curve of which only the sum of all bytes is known: they went evenly, from the first plan to the last seal."""
    whole = max(curve.seconds, 1e-9)
    points = tuple(
        replace(
            point,
            sent_bytes=int(sent_bytes * point.seconds / whole),
            cost=prices.cost(point.seconds, speeds, sent_bytes * point.seconds / whole),
        )
        for point in curve.points
    )
    cost = prices.cost(curve.seconds, speeds, sent_bytes)
    return replace(curve, points=points, sent_bytes=sent_bytes, cost=cost)
