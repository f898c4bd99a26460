"""The client's answers are the server's models, whichever version the server is of."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from shoal.apps import cli
from shoal.apps.api import problems
from shoal.apps.api.client import ApiClient, as_sent
from shoal.apps.api.models import RunStatus, RunSummary
from shoal.apps.recipes import shipped
from shoal.base.errors import ShoalError

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("coordinator")) as found:
        with found.client() as api:
            run = api.submit(shipped()["digits"].read_text()).run
            api.pause(run, "so that nothing changes")
        yield found


@pytest.fixture(scope="module")
def status(coordinator: Serving) -> dict[str, Any]:
    """A run's status as the coordinator sends it."""
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    with httpx.Client(base_url=coordinator.address, headers=headers) as http:
        run = http.get("/api/v1/runs").json()[0]["run"]
        found: dict[str, Any] = http.get(f"/api/v1/runs/{run}").json()
    return found


@contextmanager
def _answering(content: bytes, status: int = 200) -> Iterator[ApiClient]:
    """A server that says one thing, as a coordinator of another version might."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with ApiClient(f"http://127.0.0.1:{server.server_port}", "x") as api:
                yield api
        finally:
            server.shutdown()
            thread.join()


def _sent(answer: BaseModel) -> Any:
    return json.loads(json.dumps(answer, default=as_sent))


def test_answers_are_the_servers_models(coordinator: Serving, status: dict[str, Any]) -> None:
    with coordinator.client() as api:
        (brief,), found = api.runs(), api.run(status["run"])
        assert type(brief) is RunSummary and type(found) is RunStatus
        assert found.snapshot.size_bytes == status["snapshot"]["size_bytes"] > 0
        assert _sent(found) == status
        every = [api.health(), api.rounds(brief.run), api.events(brief.run), api.credit(brief.run)]
        assert all(_sent(one) for one in [*every, api.checkpoints(brief.run), api.dag()])
        assert api.pool() == []


@pytest.mark.parametrize("command", [["run", "list"], ["run", "show", "RUN"], ["top"]])
def test_json_is_what_the_coordinator_sent(
    coordinator: Serving, status: dict[str, Any], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [status["run"] if word == "RUN" else word for word in command]
    place = ["--server", coordinator.address, "--token", coordinator.token, "--json"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, *place])
    assert not ended.value.code
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    runs = httpx.get(coordinator.address + "/api/v1/runs", headers=headers).json()
    sent = {"list": runs, "show": status, "top": {"runs": runs, "run": status}}[command[:2][-1]]
    assert capsys.readouterr().out == json.dumps(sent) + "\n"


def test_what_a_newer_coordinator_says_besides_is_given_on(status: dict[str, Any]) -> None:
    newer = {**status, "snapshot": {**status["snapshot"], "mirrors": ["a"]}, "mood": {"good": True}}
    with _answering(json.dumps(newer).encode()) as api:
        found = api.run(status["run"])
    assert found.name == status["name"] and _sent(found) == newer


def test_what_an_older_coordinator_does_not_say_is_not_made_up(status: dict[str, Any]) -> None:
    older = {name: value for name, value in status.items() if name not in ("plan", "regions")}
    with _answering(json.dumps(older).encode()) as api:
        found = api.run(status["run"])
    assert found.regions == [] and _sent(found) == older


@pytest.mark.parametrize(
    ("change", "told"),
    [({"snapshot": {"at": 0}}, "snapshot.state"), ({"round": "3"}, "round"), ({"nodes": None}, "nodes")],
)
def test_an_answer_that_does_not_fit_names_the_field(
    status: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    with (
        _answering(json.dumps({**status, **change}).encode()) as api,
        pytest.raises(ShoalError) as caught,
    ):
        api.run(status["run"])
    assert caught.value.code == "SH-API-04" and f"{told} " in caught.value.cause and caught.value.next_step


def _falling_silent(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("timed out", request=request)


def _not_there(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_what_may_have_been_done_all_the_same_is_said() -> None:
    for answers, doubt in ((_falling_silent, True), (_not_there, False)):
        with ApiClient("http://there", "t") as api:
            api._http = httpx.Client(base_url="http://there", transport=httpx.MockTransport(answers))
            with pytest.raises(ShoalError, match="SH-API-04") as caught:
                api.stop("abcd", "enough")
            assert ("may have been done" in caught.value.next_step) is doubt
            with pytest.raises(ShoalError, match=r"SH-API-04.*shoal serve"):
                api.runs()


@pytest.mark.parametrize(
    "server", ["http://[::1", "http://a..b:1", "http://" + "a" * 80, "ftp://there", "there"]
)
def test_what_is_no_address(server: str) -> None:
    with pytest.raises(ShoalError, match=r"SH-API-04.*shoal serve"), ApiClient(server, "t") as api:
        api.stop("abcd", "enough")


@pytest.mark.parametrize("content", [b"", b"[]", b"<html>", b"\xff", b"null"])
def test_what_is_not_an_answer_at_all(content: bytes) -> None:
    with _answering(content) as api, pytest.raises(ShoalError) as caught:
        api.health()
    assert caught.value.code == "SH-API-04"


def test_a_failure_that_nobody_foresaw_is_not_a_wrong_address() -> None:
    broken = FastAPI()
    problems.install(broken)
    broken.add_api_route("/", lambda: {}["secret"])
    answer = TestClient(broken, raise_server_exceptions=False).get("/")
    with _answering(answer.content, answer.status_code) as api, pytest.raises(ShoalError) as raised:
        api.runs()
    assert raised.value.code == "SH-API-06" and "KeyError" in raised.value.cause
    assert "secret" not in answer.text


def test_a_missing_field(status: dict[str, Any]) -> None:
    without = {name: value for name, value in status.items() if name != "waiting_for"}
    with _answering(json.dumps([without]).encode()) as api, pytest.raises(ShoalError) as caught:
        api.runs()
    assert "0.waiting_for" in caught.value.cause and "Field required" in caught.value.cause
