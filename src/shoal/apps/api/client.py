"""The API from the other side: one coordinator's address and token, and what may be asked of it.

In flow calls; out flow the server's own models, or the coordinator's own errors as `ShoalError`s. Invariant: a call
ends by its deadline; a coordinator that does not answer is SH-API-04, whatever the network said, and so is one whose
answer lacks what its model has. What a newer coordinator says besides is kept, and `as_sent` gives it on.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from shoal.apps.api.models import (
    Banned,
    Changed,
    DatasetInfo,
    Health,
    LogPage,
    PoolMember,
    PoolPlace,
    RevokedAnswer,
    RunStatus,
    RunSummary,
    Submitted,
    TicketAnswer,
)
from shoal.apps.api.records import CheckpointDag, CheckpointGraph, CreditPage, EventPage, RoundPage
from shoal.apps.api.tls import CERT_VARIABLE
from shoal.apps.home import Home, read_secret
from shoal.apps.progress import BYTES
from shoal.base.errors import CODES, ShoalError

T = TypeVar("T")
Told = Callable[[float, float, str], None]
"""Hears how much of how much is here, such as `Bar.at`."""
DEFAULT_SERVER = "http://127.0.0.1:8470"
SERVER_VARIABLE, TOKEN_VARIABLE = "SHOAL_SERVER", "SHOAL_TOKEN"
ANSWER_S = 30.0
FOUNDING_S = 3600.0
PAGE_ENTRIES = 256
MAX_LOG_BYTES = 1 << 30
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    UnicodeError,
)
"""Of these nothing reached the coordinator."""


class ApiClient:
    """Use it as `with ApiClient(...) as api:`."""

    def __init__(self, server: str, token: str, trust: Path | None = None) -> None:
        """`trust` is the certificate of a coordinator whose own it is. Raises SH-API-04 if no address is like this."""
        self.server = server.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        verify = ssl.create_default_context(cafile=str(trust)) if trust is not None else True
        # No proxies from the environment: coordinators are near, and proxies would see the token.
        try:
            self._http = httpx.Client(
                base_url=self.server, headers=headers, timeout=ANSWER_S, trust_env=False, verify=verify
            )
        except httpx.InvalidURL as error:
            raise _unanswered(self.server, "GET", error) from error

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def runs(self) -> list[RunSummary]:
        return self._answer(list[RunSummary], "GET", "/api/v1/runs")

    def run(self, run: str) -> RunStatus:
        return self._answer(RunStatus, "GET", f"/api/v1/runs/{_part(run)}")

    def submit(self, recipe: str) -> Submitted:
        """Found a run from recipe text; waits while its data is prepared."""
        return self._answer(Submitted, "POST", "/api/v1/runs", content=recipe.encode(), timeout=FOUNDING_S)

    def stop(self, run: str, reason: str) -> RunSummary:
        return self._answer(RunSummary, "POST", f"/api/v1/runs/{_part(run)}/stop", json={"reason": reason})

    def rewind(self, run: str, to: int, reason: str) -> RunSummary:
        wish = {"to": to, "reason": reason}
        return self._answer(RunSummary, "POST", f"/api/v1/runs/{_part(run)}/rewind", json=wish)

    def fund(self, run: str, add_micro: int, reason: str) -> RunSummary:
        wish = {"add_micro": add_micro, "reason": reason}
        return self._answer(RunSummary, "POST", f"/api/v1/runs/{_part(run)}/fund", json=wish)

    def ban(self, run: str, node: str, seconds: float, reason: str) -> Banned:
        """Keep a node out for so long; 0 lets it in again."""
        wish = {"node": node, "seconds": seconds, "reason": reason}
        return self._answer(Banned, "POST", f"/api/v1/runs/{_part(run)}/bans", json=wish)

    def revoke(self, run: str, node: str, reason: str) -> RevokedAnswer:
        """No key speaks for a node any more."""
        wish = {"node": node, "reason": reason}
        return self._answer(RevokedAnswer, "POST", f"/api/v1/runs/{_part(run)}/revocations", json=wish)

    def ticket(
        self, run: str, expires_s: float | None, uses: int | None = None, nodes: tuple[str, ...] = ()
    ) -> TicketAnswer:
        given = {"expires_s": expires_s, "uses": uses, "nodes": nodes or None}
        wish = {name: value for name, value in given.items() if value is not None}
        return self._answer(TicketAnswer, "POST", f"/api/v1/runs/{_part(run)}/tickets", json=wish)

    def health(self) -> Health:
        return self._answer(Health, "GET", "/healthz")

    def lend(self, offer: dict[str, Any]) -> PoolPlace:
        """Offer a machine to the pool; which run it works for."""
        return self._answer(PoolPlace, "POST", "/api/v1/pool", json=offer)

    def pool(self) -> list[PoolMember]:
        return self._answer(list[PoolMember], "GET", "/api/v1/pool")

    def pause(self, run: str, reason: str) -> RunSummary:
        return self._answer(RunSummary, "POST", f"/api/v1/runs/{_part(run)}/pause", json={"reason": reason})

    def resume(self, run: str) -> RunSummary:
        return self._answer(RunSummary, "POST", f"/api/v1/runs/{_part(run)}/resume")

    def change(self, run: str, changes: dict[str, Any]) -> Changed:
        return self._answer(
            Changed, "POST", f"/api/v1/runs/{_part(run)}/parameters", json={"changes": changes}
        )

    def rounds(self, run: str, start: int = 0, limit: int = 2000) -> RoundPage:
        where = {"start": start, "limit": limit}
        return self._answer(RoundPage, "GET", f"/api/v1/runs/{_part(run)}/rounds", params=where)

    def events(self, run: str, **filters: Any) -> EventPage:
        return self._answer(EventPage, "GET", f"/api/v1/runs/{_part(run)}/events", params=filters)

    def checkpoints(self, run: str) -> CheckpointGraph:
        return self._answer(CheckpointGraph, "GET", f"/api/v1/runs/{_part(run)}/checkpoints")

    def dag(self) -> CheckpointDag:
        """The checkpoints of all runs, as a graph."""
        return self._answer(CheckpointDag, "GET", "/api/v1/checkpoints")

    def credit(self, run: str) -> CreditPage:
        return self._answer(CreditPage, "GET", f"/api/v1/runs/{_part(run)}/credit")

    def upload(self, name: str, content: bytes) -> DatasetInfo:
        """Send a dataset; its `data` is the recipe's section for it."""
        where = {"name": name}
        return self._answer(
            DatasetInfo, "POST", "/api/v1/datasets", params=where, content=content, timeout=FOUNDING_S
        )

    def log(self, run: str, told: Told | None = None) -> list[bytes]:
        """The whole log, as signed."""
        entries: list[bytes] = []
        size_bytes = 0
        while True:
            where = {"start": len(entries), "limit": PAGE_ENTRIES}
            page = self._answer(LogPage, "GET", f"/api/v1/runs/{_part(run)}/log", params=where)
            items = [base64.b64decode(item.encoded) for item in page.items]
            entries += items
            if told is not None:
                told(len(entries), page.length, "entries")
            size_bytes += sum(map(len, items))
            if len(entries) >= page.length or not items:
                return entries
            if size_bytes > MAX_LOG_BYTES:
                raise _garbled(self.server, f"its log is over {MAX_LOG_BYTES} bytes")

    def latest_snapshot(self, run: str, told: Told | None = None) -> bytes:
        """The state that was saved last."""
        return self._call("GET", f"/api/v1/runs/{_part(run)}/snapshots/latest", told)

    def tokenizer(self, run: str) -> bytes:
        return self._call("GET", f"/api/v1/runs/{_part(run)}/tokenizer")

    def _answer(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        content = self._call(method, path, **options)
        try:
            return TypeAdapter(kind).validate_json(content, strict=True, extra="allow")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "its answer"
            raise _garbled(self.server, f"{where} to {method} {path}: {first['msg']}") from error

    def _call(self, method: str, path: str, told: Told | None = None, **options: Any) -> bytes:
        try:
            with self._http.stream(method, path, **options) as answer:
                if answer.is_success:
                    return b"".join(_pieces(answer, told))
                answer.read()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last: no host's name
            raise _unanswered(self.server, method, error) from error
        raise _as_error(self.server, answer)


def _pieces(answer: httpx.Response, told: Told | None) -> Iterator[bytes]:
    """What comes, as it comes. How much it will be is known where the length is said."""
    total = float(answer.headers.get("Content-Length", "inf"))
    for piece in answer.iter_bytes():
        if told is not None:
            told(answer.num_bytes_downloaded, total, BYTES)
        yield piece


def as_sent(answer: BaseModel) -> dict[str, Any]:
    """An answer's fields as the coordinator sent them, no more and no less: for `json.dumps(..., default=as_sent)`."""
    known = {name: value for name, value in vars(answer).items() if name in answer.model_fields_set}
    return {**known, **(answer.model_extra or {})}


def open_client(server: str | None, token: str | None, token_file: Path | None, home: Home) -> ApiClient:
    """A client by the options given, else by the environment, else for this machine's own coordinator."""
    address = server or os.environ.get(SERVER_VARIABLE) or _local_address(home) or DEFAULT_SERVER
    if token_file is not None:
        said = read_secret(token_file, given=True)
        if said is None:
            raise ShoalError("SH-KEY-01", f"{token_file} is missing or empty", "check --token-file")
        return ApiClient(address, said, _trusted(address, home))
    said = token or os.environ.get(TOKEN_VARIABLE) or read_secret(home.admin_token)
    return ApiClient(address, said or "", _trusted(address, home))


def _trusted(address: str, home: Home) -> Path | None:
    """The certificate to believe in, where it is not one that everybody does. Raises SH-KEY-01."""
    if not address.startswith("https:"):
        return None
    named = os.environ.get(CERT_VARIABLE)
    if named is not None and not Path(named).is_file():
        raise ShoalError("SH-KEY-01", f"{named} cannot be read", f"check {CERT_VARIABLE}")
    own = home.coordinator / "api-cert.pem"
    return Path(named) if named else own if own.is_file() else None


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


def _unanswered(server: str, method: str, error: Exception) -> ShoalError:
    next_step = "start a coordinator with `shoal serve`, or name one with --server"
    if method != "GET" and not isinstance(error, _UNSENT):
        next_step = "it may have been done all the same: see `shoal run list` before you ask for it again"
    return ShoalError("SH-API-04", f"{server} does not answer: {error or type(error).__name__}", next_step)


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
