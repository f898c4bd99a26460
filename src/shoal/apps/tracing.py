"""OpenTelemetry traces that follow one round across its coordinator and its nodes.

In flow what coordinator and nodes know of their rounds anyway; out flow spans. Invariant: a round's trace id is made of
the run and the round, so that everybody's spans meet in one trace though nothing about it travels; where nobody wants
traces, or the extra `traces` is not installed, nothing is done.

    SHOAL_TRACES=spans.jsonl             spans as JSON lines in a file
    SHOAL_TRACES=http://host:4318        spans to a collector, over OTLP
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import blake3

from shoal.base.errors import ShoalError

if TYPE_CHECKING:
    from shoal.apps.api.diary import Diaries
    from shoal.apps.api.records import RoundRecord
    from shoal.node.service import NodeService

VARIABLE = "SHOAL_TRACES"
LOOK_S = 0.1


class Spans(Protocol):
    """Where spans go."""

    def add(self, run: str, number: int, name: str, begin_ns: int, end_ns: int, **facts: Any) -> None:
        """A span of this round's trace."""


def trace_id(run: str, number: int) -> int:
    """The same for everybody who has a part in the round."""
    return int(blake3.blake3(f"shoal/trace/{run}/{number}".encode()).hexdigest()[:32], 16) or 1


def root_id(run: str, number: int) -> int:
    """The id of the span that is the whole round: the parent of all others."""
    return int(blake3.blake3(f"shoal/span/{run}/{number}".encode()).hexdigest()[:16], 16) or 1


def spans_from_environment(who: str) -> Spans | None:
    """Where the environment wants spans to go; None if nowhere. Raises SH-TRACE-01 if that cannot be."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return None
    try:
        from shoal.apps.tracing_otel import OtelSpans
    except ImportError as error:
        raise ShoalError(
            "SH-TRACE-01", f"{VARIABLE} is set, and {error.name} is missing", "pip install 'shoal[traces]'"
        ) from None
    return OtelSpans(wanted, who)


class CoordinatorTrace:
    """Give `look` to the diaries' `after`: every sealed round becomes the spans that the log tells of it."""

    def __init__(self, diaries: Diaries, spans: Spans) -> None:
        self._diaries = diaries
        self._spans = spans
        self._told: dict[str, int] = {
            run: next((record.seal or 0 for record in diary.chronicle.rounds.newest_first()), 0)
            for run, diary in diaries.by_run.items()
        }

    async def look(self) -> None:
        for run, diary in self._diaries.by_run.items():
            told = self._told.get(run, 0)
            fresh = [r for r in diary.chronicle.rounds.latest(200) if (r.seal or 0) > told]
            for record in fresh:
                self._tell(run, record)
                self._told[run] = record.seal or told

    def _tell(self, run: str, record: RoundRecord) -> None:
        begin, end = record.opened_ms * 1_000_000, (record.sealed_ms or record.opened_ms) * 1_000_000
        facts = {
            "accepted": len(record.accepted),
            "late": len(record.late),
            "rejected": len(record.rejected),
            "why": record.why_sealed,
            "update_bytes": record.update_bytes,
        }
        self._spans.add(run, record.round, "round", begin, end, root=True, **facts)


async def trace_node(service: NodeService, spans: Spans | None) -> None:
    """Follow what a node does until cancelled: each thing it does in a round is a span."""
    if spans is None:
        return
    doing, number, began = "", -1, time.time_ns()
    while True:
        machine = service.machine
        now = (machine.doing, machine.view.round)
        if now != (doing, number):
            if doing and number >= 0:
                _tell(spans, service, doing, number, began)
            doing, number, began = *now, time.time_ns()
        await asyncio.sleep(LOOK_S)


def _tell(spans: Spans, service: NodeService, doing: str, number: int, began: int) -> None:
    run, node = service.machine.view.run, service.identity.node
    if run:
        spans.add(run, number, doing.partition(" round")[0], began, time.time_ns(), node=node[:12])
