"""The API from the other side: one coordinator's address and token, and what may be asked of it.

In flow calls; out flow the answers' JSON, or the coordinator's own errors as `ShoalError`s. Invariant: a call
ends by its deadline; a coordinator that does not answer is SH-API-04, whatever the network said.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import httpx

from shoal.apps.home import Home, read_secret
from shoal.base.errors import CODES, ShoalError

DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE, TOKEN_VARIABLE = "SHOAL_SERVER", "SHOAL_TOKEN"
ANSWER_S = 30.0
FOUNDING_S = 3600.0
PAGE_ENTRIES = 256
MAX_LOG_BYTES = 1 << 30


class ApiClient:
    """Use it as `with ApiClient(...) as api:`."""

    def __init__(self, server: str, token: str) -> None:
        self.server = server.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # No proxies from the environment: coordinators are near, and proxies would see the token.
        self._http = httpx.Client(base_url=self.server, headers=headers, timeout=ANSWER_S, trust_env=False)

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", "/api/v1/runs").json()
        return found

    def run(self, run: str) -> dict[str, Any]:
        return self._object("GET", f"/api/v1/runs/{_part(run)}")

    def submit(self, recipe: str) -> dict[str, Any]:
        """Found a run from recipe text; waits while its data is prepared."""
        return self._object("POST", "/api/v1/runs", content=recipe.encode(), timeout=FOUNDING_S)

    def stop(self, run: str, reason: str) -> dict[str, Any]:
        return self._object("POST", f"/api/v1/runs/{_part(run)}/stop", json={"reason": reason})

    def rewind(self, run: str, to: int, reason: str) -> dict[str, Any]:
        wish = {"to": to, "reason": reason}
        return self._object("POST", f"/api/v1/runs/{_part(run)}/rewind", json=wish)

    def ticket(self, run: str, expires_s: float | None) -> dict[str, Any]:
        wish = {} if expires_s is None else {"expires_s": expires_s}
        return self._object("POST", f"/api/v1/runs/{_part(run)}/tickets", json=wish)

    def log(self, run: str) -> list[bytes]:
        """The whole log, as signed."""
        entries: list[bytes] = []
        size_bytes = 0
        while True:
            where = {"start": len(entries), "limit": PAGE_ENTRIES}
            page = self._object("GET", f"/api/v1/runs/{_part(run)}/log", params=where)
            items = [base64.b64decode(item["encoded"]) for item in page["items"]]
            entries += items
            size_bytes += sum(map(len, items))
            if len(entries) >= page["length"] or not items:
                return entries
            if size_bytes > MAX_LOG_BYTES:
                raise _garbled(self.server, f"its log is over {MAX_LOG_BYTES} bytes")

    def latest_snapshot(self, run: str) -> bytes:
        return self._call("GET", f"/api/v1/runs/{_part(run)}/snapshots/latest").content

    def tokenizer(self, run: str) -> bytes:
        return self._call("GET", f"/api/v1/runs/{_part(run)}/tokenizer").content

    def _object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        found = self._call(method, path, **options).json()
        if not isinstance(found, dict):
            raise _garbled(self.server, "it did not answer with an object")
        return found

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ShoalError(
                "SH-API-04",
                f"{self.server} does not answer: {error or type(error).__name__}",
                "start a coordinator with `shoal serve`, or name one with --server",
            ) from error
        if answer.is_success:
            return answer
        raise _as_error(self.server, answer)


def open_client(server: str | None, token: str | None, token_file: Path | None, home: Home) -> ApiClient:
    """A client by the options given, else by the environment, else for this machine's own coordinator."""
    address = server or os.environ.get(SERVER_VARIABLE) or _local_address(home) or DEFAULT_SERVER
    if token_file is not None:
        said = read_secret(token_file)
        if said is None:
            raise ShoalError("SH-KEY-01", f"{token_file} is missing or empty", "check --token-file")
        return ApiClient(address, said)
    said = token or os.environ.get(TOKEN_VARIABLE) or read_secret(home.admin_token)
    return ApiClient(address, said or "")


def _local_address(home: Home) -> str | None:
    try:
        return home.api_address.read_text("utf-8").strip() or None
    except OSError:
        return None


def _part(text: str) -> str:
    """A run's name as one part of a path."""
    if not text or not all(c.isalnum() and c.isascii() for c in text):
        raise ShoalError("SH-API-02", f"{text!r} is not a run's id", "see which there are: shoal run list")
    return text


def _as_error(server: str, answer: httpx.Response) -> ShoalError:
    """The coordinator's problem as the error it was there."""
    try:
        problem = answer.json()
        code, cause, next_step = problem["code"], problem["detail"], problem["next_step"]
    except (ValueError, KeyError, TypeError):
        return _garbled(server, f"it answered {answer.status_code}")
    if code not in CODES:
        return _garbled(server, f"it answered {code}: {cause}")
    return ShoalError(code, str(cause), str(next_step))


def _garbled(server: str, what: str) -> ShoalError:
    return ShoalError(
        "SH-API-04", f"{server} is not a coordinator this version understands: {what}", "check --server"
    )
