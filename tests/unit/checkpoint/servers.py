"""Servers that checkpoints go to: moto's S3 as a process, a web server, a small node that speaks IPFS's HTTP API."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

START_S = 60.0


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """moto's server, as a process of its own; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            _wait_for(port, child)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.kill()


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < deadline and child.poll() is None, "moto's server did not start"
        time.sleep(0.05)


@contextlib.contextmanager
def _serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """A plain web server with ranges, without which there is no web seed."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, wanted = path.read_bytes(), self.headers.get("Range")
        start, stop = 0, len(data)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1 if last else len(data)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(data[start:stop])

    def log_message(self, format: str, *arguments: object) -> None:
        return None


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    with _serving(partial(_Ranges, directory=str(folder))) as address:  # type: ignore[arg-type]
        yield address


class _Ipfs(http.server.BaseHTTPRequestHandler):
    """`add` (of a folder, wrapped), `ls` and `cat`, as Kubo answers them; a CID here is a plain hash."""

    trees: dict[str, dict[str, bytes]]

    def do_POST(self) -> None:
        where = urlsplit(self.path)
        what, options = where.path.removeprefix("/api/v0/"), parse_qs(where.query)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if what == "add":
            assert options["wrap-with-directory"] == ["true"]
            self._answer(self._add(body))
        elif what == "ls":
            self._answer(self._list(options["arg"][0]))
        elif what == "cat":
            root, _, path = options["arg"][0].partition("/")
            self._answer(self.trees[root][path])
        else:
            self.send_error(404)

    def _add(self, body: bytes) -> bytes:
        message: Message = BytesParser().parsebytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        files = {}
        for part in message.get_payload():
            assert isinstance(part, Message)
            files[str(part.get_filename())] = part.get_payload(decode=True)
        root = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        self.trees[root] = files  # type: ignore[assignment]
        lines = [{"Name": name, "Hash": hashlib.sha256(data).hexdigest()} for name, data in files.items()]  # type: ignore[arg-type]
        return "\n".join(json.dumps(line) for line in [*lines, {"Name": "", "Hash": root}]).encode()

    def _list(self, name: str) -> bytes:
        root, _, below = name.partition("/")
        prefix = f"{below}/" if below else ""
        rest = [path.removeprefix(prefix) for path in self.trees[root] if path.startswith(prefix)]
        names = sorted({path.partition("/")[0] for path in rest})
        folders = {path.partition("/")[0] for path in rest if "/" in path}
        sizes = {name: len(self.trees[root].get(prefix + name, b"")) for name in names}
        links = [
            {"Name": name, "Hash": "", "Size": size, "Type": 1 if name in folders else 2}
            for name, size in sizes.items()
        ]
        return json.dumps({"Objects": [{"Hash": root, "Links": links}]}).encode()

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        return None


@contextlib.contextmanager
def ipfs_node() -> Iterator[str]:
    with _serving(type("_Node", (_Ipfs,), {"trees": {}})) as address:
        yield address
