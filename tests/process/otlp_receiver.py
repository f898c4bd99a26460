"""A collector of traces: OTLP over HTTP in, one JSON line a span out. It refuses what is no OTLP.

Started as a process: python -m process.otlp_receiver FILE; it says its port on the first line of its output.
"""

from __future__ import annotations

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

FORM = "application/x-protobuf"


class _Collector(BaseHTTPRequestHandler):
    file: Path

    def do_POST(self) -> None:
        if self.path != "/v1/traces" or self.headers.get("Content-Type") != FORM:
            self.send_error(415, "this is no OTLP")
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        spans = _spans(ExportTraceServiceRequest.FromString(body))
        with open(self.file, "a", encoding="utf-8") as out:
            out.writelines(json.dumps(span) + "\n" for span in spans)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", FORM)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _spans(request: ExportTraceServiceRequest) -> list[dict[str, Any]]:
    return [
        {
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "name": span.name,
            "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
            "service": {item.key: item.value.string_value for item in part.resource.attributes},
        }
        for part in request.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def main(file: Path) -> None:
    handler = type("Collector", (_Collector,), {"file": file})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
