from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.worlds.real.http1 import (
    BadHead,
    parse_reply,
    parse_request,
    render_get,
    render_put,
    render_reply,
    wanted_range,
)


@given(path=st.text(min_size=1, max_size=40), start=st.integers(0, 10**12), size=st.integers(1, 10**9))
def test_a_get_comes_through(path: str, start: int, size: int) -> None:
    request = parse_request(render_get("h:1", path, start, start + size))
    assert (request.method, request.path, request.body_bytes, request.keep) == ("GET", path, 0, True)
    assert wanted_range(request) == (start, start + size)


def test_a_put_comes_through() -> None:
    request = parse_request(render_put("h:1", "blobs/ab", 77, {"Shoal-Key": "00"}))
    assert (request.method, request.path, request.body_bytes) == ("PUT", "blobs/ab", 77)
    assert request.headers["shoal-key"] == "00" and wanted_range(request) is None


@given(status=st.sampled_from([200, 206, 404, 409]), size=st.integers(0, 10**9), keep=st.booleans())
def test_a_reply_comes_through(status: int, size: int, keep: bool) -> None:
    reply = parse_reply(render_reply(status, size, keep))
    assert (reply.status, reply.body_bytes, reply.keep) == (status, size, keep)


@given(st.binary(max_size=200))
def test_whatever_the_bytes_it_is_a_value_or_a_bad_head(head: bytes) -> None:
    for parse in (parse_request, parse_reply):
        try:
            parse(head)
        except BadHead:
            continue


@pytest.mark.parametrize(
    "lines",
    [
        "GET / HTTP/1.0",
        "GET  / HTTP/1.1",
        "GET http://other/ HTTP/1.1",
        "GET /%ff HTTP/1.1",
        "G(T / HTTP/1.1",
        "PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked",
        "PUT /x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        "PUT /x HTTP/1.1\r\nContent-Length: -1",
        "PUT /x HTTP/1.1\r\nContent-Length: 1_0",
        "PUT /x HTTP/1.1\r\nContent-Length : 1",
        "PUT /x HTTP/1.1\r\n folded: 1",
        "PUT /x HTTP/1.1\r\nbare\nnewline: 1",
    ],
)
def test_ambiguous_heads_are_bad(lines: str) -> None:
    with pytest.raises(BadHead):
        parse_request(lines.encode() + b"\r\n\r\n")


@pytest.mark.parametrize("text", ["bytes=5-4", "bytes=-5", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b"])
def test_ranges_that_are_none_are_bad(text: str) -> None:
    request = parse_request(f"GET /x HTTP/1.1\r\nRange: {text}\r\n\r\n".encode())
    with pytest.raises(BadHead):
        wanted_range(request)
