"""Spans by OpenTelemetry. Imported only where traces are wanted: it needs the extra `traces`.

In flow spans with chosen ids; out flow JSON lines or OTLP. Invariant: ids are never drawn but where a span is nobody's
parent, so that separate processes make one tree.
"""

from __future__ import annotations

import random
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from shoal.apps.tracing import root_id, trace_id
from shoal.base.errors import ShoalError


class _Ids(IdGenerator):
    """The ids of the next span that has no parent; others draw theirs."""

    def __init__(self) -> None:
        self.trace, self.span = 1, 0
        self._random = random.SystemRandom()

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        span, self.span = self.span, 0
        return span or self._random.getrandbits(64) or 1


class OtelSpans:
    """Implements `tracing.Spans`."""

    def __init__(self, target: str, who: str) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "shoal", "service.instance.id": who})
        self._provider = TracerProvider(id_generator=self._ids, resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(target), schedule_delay_millis=500))
        self._tracer = self._provider.get_tracer("shoal")

    def add(self, run: str, number: int, name: str, begin_ns: int, end_ns: int, **facts: Any) -> None:
        trace, parent = trace_id(run, number), root_id(run, number)
        context = None
        if facts.pop("root", False):
            self._ids.trace, self._ids.span = trace, parent
        else:
            above = SpanContext(trace, parent, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(above))
        known = {"shoal.run": run, "shoal.round": number, **{f"shoal.{k}": v for k, v in facts.items()}}
        span = self._tracer.start_span(name, context=context, start_time=begin_ns, attributes=known)
        span.end(end_ns)


def _exporter(target: str) -> SpanExporter:
    if not target.startswith(("http://", "https://")):
        try:
            file = open(target, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (open as long as the process)
        except OSError as error:
            raise ShoalError(
                "SH-TRACE-01", f"{target} cannot be written: {error}", "name another file"
            ) from None
        return ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[import-not-found,unused-ignore]
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise ShoalError("SH-TRACE-01", f"{error.name} is missing", "pip install 'shoal[traces]'") from None
    exporter: SpanExporter = OTLPSpanExporter(endpoint=f"{target.rstrip('/')}/v1/traces")
    return exporter
