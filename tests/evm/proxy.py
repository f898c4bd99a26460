"""A server between a client and a chain, that answers some methods itself, or none at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


class Door:
    """An RPC at an address of its own, in front of a chain, that can be shut and opened; `lies` are its own results."""

    def __init__(self, url: str, lies: dict[str, Any] | None = None) -> None:
        self._handler = _handler(url, lies or {})
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        self._port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def shut(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def lying_rpc(url: str, lies: dict[str, Any]) -> Iterator[str]:
    """The address of an RPC that gives these results for these methods, and the truth for all others."""
    door = Door(url, lies)
    try:
        yield door.url
    finally:
        door.shut()


def _handler(url: str, lies: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = httpx.post(url, json=body, timeout=30).json()
            if isinstance(body, dict) and body["method"] in lies:
                answer = {"jsonrpc": "2.0", "id": body["id"], "result": lies[body["method"]]}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return None

    return Handler
