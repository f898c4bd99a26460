"""JSON-RPC to a chain, by any of several URLs, one call or a batch at a time.

In flow methods and parameters; out flow results, or refusals as values. Invariant: an answer is bounded in size and
time; a URL that fails is left for the next one, and only when all fail is that an error; a URL's path, where providers
put their keys, is in no message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from shoal.base.errors import ShoalError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
BATCH = 100
"""Requests in one HTTP call; providers take this many."""
_JSON = {"Content-Type": "application/json"}
Request = tuple[str, Sequence[Any]]


class Refused(Exception):
    """The chain's node understood a request and refused it."""

    def __init__(self, code: int, message: str, data: bytes = b"") -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message, self.data = code, message, data


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a batch: a result, or why there is none."""

    result: Any = None
    refused: Refused | None = None


class Rpc:
    """Safe to use from one thread. Raises SH-CHAIN-04 when no URL answers."""

    def __init__(self, urls: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self._urls = list(urls)
        for url in self._urls:
            if urlsplit(url).scheme not in ("http", "https"):
                raise ShoalError("SH-CHAIN-04", f"{shown(url)} is not an http address", "check the RPC URLs")
        self._client = httpx.Client(timeout=timeout_s)
        self._ids = itertools.count(1)
        self._first = 0

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, *params: Any) -> Any:
        """One result. Raises `Refused`."""
        (answer,) = self.batch([(method, params)])
        if answer.refused is not None:
            raise answer.refused
        return answer.result

    def batch(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers in the order of the requests, in as few HTTP calls as that takes."""
        answers: list[Answer] = []
        for at in range(0, len(requests), BATCH):
            answers += self._batch(requests[at : at + BATCH])
        return answers

    def _batch(self, requests: Sequence[Request]) -> list[Answer]:
        failures = []
        for attempt in range(len(self._urls)):
            place = (self._first + attempt) % len(self._urls)
            try:
                answers = self._ask(self._urls[place], requests)
            except (httpx.HTTPError, msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
                failures.append(f"{shown(self._urls[place])}: {_words(error)}")
                continue
            self._first = place
            return answers
        raise ShoalError(
            "SH-CHAIN-04",
            f"no RPC answers: {'; '.join(failures)}",
            "check the URLs and the network; what was to be settled is kept and goes out later",
        )

    def _ask(self, url: str, requests: Sequence[Request]) -> list[Answer]:
        ids = [next(self._ids) for _ in requests]
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}
            for number, (method, params) in zip(ids, requests, strict=True)
        ]
        said = self._post(url, body[0] if len(body) == 1 else body)
        by_id = {item["id"]: item for item in ([said] if isinstance(said, dict) else said)}
        return [_answer(by_id[number]) for number in ids]

    def _post(self, url: str, body: Any) -> Any:
        with self._client.stream("POST", url, content=msgspec.json.encode(body), headers=_JSON) as response:
            response.raise_for_status()
            parts, size = [], 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_ANSWER_BYTES:
                    raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return msgspec.json.decode(b"".join(parts))


def _answer(item: dict[str, Any]) -> Answer:
    error = item.get("error")
    if error is None:
        return Answer(item["result"])
    data = error.get("data")
    hexed = data if isinstance(data, str) and data.startswith("0x") else "0x"
    return Answer(
        refused=Refused(int(error.get("code", 0)), str(error.get("message", ""))[:500], _bytes(hexed))
    )


def _bytes(hexed: str) -> bytes:
    try:
        return bytes.fromhex(hexed[2:])
    except ValueError:
        return b""


def shown(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or '?'}" + (f":{parts.port}" if parts.port else "")


def _words(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return "cannot be reached" if isinstance(error, httpx.TransportError) else "an answer that is none"
