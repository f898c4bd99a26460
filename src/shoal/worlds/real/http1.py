"""The little of HTTP/1.1 that peers speak: heads as bytes to and from values. No I/O.

In flow heads (start line and headers, up to the blank line); out flow requests and replies. Invariant:
whatever the bytes, parsing gives a value or `BadHead`, and a body's length is always a plain number known
beforehand, so that two readers can never disagree on where a message ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from shoal.base.errors import ChannelClosed

HEAD_END = b"\r\n\r\n"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_REASONS = {
    200: "OK",
    206: "Partial Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadHead(ChannelClosed):
    """The other side's bytes are not a head we accept; the connection is of no further use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    """Decoded, without the leading slash."""
    headers: dict[str, str]
    """Names in lower case."""
    body_bytes: int
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    body_bytes: int
    keep: bool


def parse_request(head: bytes) -> Request:
    start, headers = _split(head)
    words = start.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or words[2] != "HTTP/1.1":
        raise BadHead(f"not an HTTP/1.1 request: {start[:80]!r}")
    if not words[1].startswith("/"):
        raise BadHead("the request's target is not a path")
    try:
        path = unquote(words[1][1:], errors="strict")
    except UnicodeDecodeError as error:
        raise BadHead("the path is not UTF-8") from error
    return Request(
        method=words[0], path=path, headers=headers, body_bytes=_body_bytes(headers), keep=_keeps(headers)
    )


def parse_reply(head: bytes) -> Reply:
    start, headers = _split(head)
    words = start.split(" ", 2)
    if len(words) < 2 or words[0] != "HTTP/1.1" or not re.fullmatch(r"[2-5]\d\d", words[1], re.ASCII):
        raise BadHead(f"not an HTTP/1.1 reply: {start[:80]!r}")
    if "content-length" not in headers:
        raise BadHead("the reply does not say how long it is")
    return Reply(status=int(words[1]), body_bytes=_body_bytes(headers), keep=_keeps(headers))


def wanted_range(request: Request) -> tuple[int, int | None] | None:
    """The half-open [start, stop) that the request asks for, or None where it asks for the whole."""
    text = request.headers.get("range")
    if text is None:
        return None
    match = _RANGE.fullmatch(text)
    if not match:
        raise BadHead(f"not a range of bytes: {text[:80]!r}")
    start, stop = int(match[1]), int(match[2]) + 1 if match[2] else None
    if stop is not None and stop <= start:
        raise BadHead(f"not a range of bytes: {text[:80]!r}")
    return start, stop


def render_get(host: str, path: str, start: int, stop: int) -> bytes:
    return _render(f"GET /{quote(path)} HTTP/1.1", {"Host": host, "Range": f"bytes={start}-{stop - 1}"})


def render_put(host: str, path: str, body_bytes: int, proof: dict[str, str]) -> bytes:
    headers = {"Host": host, "Content-Length": str(body_bytes), **proof}
    return _render(f"PUT /{quote(path)} HTTP/1.1", headers)


def render_reply(status: int, body_bytes: int, keep: bool, content_range: str | None = None) -> bytes:
    headers = {"Content-Length": str(body_bytes), "Content-Type": "application/octet-stream"}
    if content_range:
        headers["Content-Range"] = content_range
    if not keep:
        headers["Connection"] = "close"
    return _render(f"HTTP/1.1 {status} {_REASONS[status]}", headers)


def _render(start: str, headers: dict[str, str]) -> bytes:
    lines = [start, *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("ascii") + HEAD_END


def _split(head: bytes) -> tuple[str, dict[str, str]]:
    try:
        start, *lines = head.removesuffix(HEAD_END).decode("ascii").split("\r\n")
    except UnicodeDecodeError as error:
        raise BadHead("a head that is not ASCII") from error
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        lower = name.lower()
        if not colon or not _TOKEN.fullmatch(name) or lower in headers or "\n" in value or "\r" in value:
            raise BadHead(f"not a header: {line[:80]!r}")
        headers[lower] = value.strip(" \t")
    return start, headers


def _body_bytes(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadHead("bodies of unknown length are not accepted")
    text = headers.get("content-length", "0")
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise BadHead(f"not a length: {text[:80]!r}")
    return int(text)


def _keeps(headers: dict[str, str]) -> bool:
    return headers.get("connection", "").lower() != "close"
