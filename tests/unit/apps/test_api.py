"""The HTTP API of a real coordinator, over real HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file

from shoal.apps.api.client import ApiClient, as_sent
from shoal.apps.exporting import export_run
from shoal.apps.recipes import shipped
from shoal.base.errors import ShoalError
from shoal.runlog.view import verify_log
from shoal.strategy.recipe import load_recipe
from shoal.wire.ticket import read_ticket

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("coordinator")) as found:
        yield found


@pytest.fixture
def http(coordinator: Serving) -> Iterator[httpx.Client]:
    """With the token."""
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    with httpx.Client(base_url=coordinator.address, headers=headers) as client:
        yield client


@pytest.fixture(scope="module")
def digits(coordinator: Serving) -> dict[str, str]:
    """A run that waits for nodes."""
    with coordinator.client() as api:
        return as_sent(api.submit(shipped()["digits"].read_text()))


def _problem(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, object] = answer.json()
    assert found["status"] == answer.status_code
    return found


def test_health_needs_no_token(coordinator: Serving) -> None:
    answer = httpx.get(coordinator.address + "/healthz")
    assert answer.status_code == 200
    assert answer.json()["ok"] is True


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/runs/abcd", "/api/v1/runs/abcd/log"])
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}])
def test_everything_else_needs_the_right_one(coordinator: Serving, path: str, header: dict[str, str]) -> None:
    answer = httpx.get(coordinator.address + path, headers=header)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    problem = _problem(answer)
    assert problem["code"] == "SH-API-01"
    assert problem["next_step"]


def test_a_stranger_can_submit_nothing(coordinator: Serving) -> None:
    answer = httpx.post(coordinator.address + "/api/v1/runs", content=shipped()["digits"].read_text())
    assert answer.status_code == 401


def test_a_submitted_run_is_listed(digits: dict[str, str], http: httpx.Client) -> None:
    runs = {run["run"]: run for run in http.get("/api/v1/runs").json()}
    run = runs[digits["run"]]
    assert (run["name"], run["state"], run["round"], run["rounds"]) == ("digits", "waiting", 0, 20)
    assert "node" in run["waiting_for"]
    assert run["train_loss"] is None


def test_its_ticket_names_run_and_coordinator(coordinator: Serving, digits: dict[str, str]) -> None:
    ticket = read_ticket(digits["ticket"])
    assert ticket.run == digits["run"]
    assert coordinator.welcome[0] == f"shoal coordinator {ticket.coordinator}"
    assert ticket.token not in "".join(coordinator.welcome)


def test_its_status_by_a_prefix(digits: dict[str, str], http: httpx.Client) -> None:
    status = http.get(f"/api/v1/runs/{digits['run'][:6]}").json()
    assert status["run"] == digits["run"]
    assert (status["head"], status["at"], status["snapshot"]["at"]) == (0, 0, 0)
    assert status["nodes"] == status["losses"] == status["rejected"] == []
    assert status["attested"] is None


def test_its_log_verifies_elsewhere(coordinator: Serving, digits: dict[str, str]) -> None:
    with coordinator.client() as api:
        view, finding = verify_log(api.log(digits["run"]))
    assert finding is None
    assert view.run == digits["run"]


def test_log_pages_are_bounded(digits: dict[str, str], http: httpx.Client) -> None:
    page = http.get(f"/api/v1/runs/{digits['run']}/log").json()
    assert page["length"] == 1
    assert page["items"][0]["kind"] == "genesis"
    assert "digits" in page["items"][0]["body"]["recipe"]
    answer = http.get(f"/api/v1/runs/{digits['run']}/log", params={"limit": 100_000})
    assert answer.status_code == 422
    assert "limit" in str(_problem(answer)["detail"])


@pytest.mark.parametrize("name", ["0" * 32, "ab", "nothing"])
def test_an_unknown_run(http: httpx.Client, name: str) -> None:
    for answer in (http.get(f"/api/v1/runs/{name}"), http.post(f"/api/v1/runs/{name}/stop")):
        assert answer.status_code == 404
        assert _problem(answer)["code"] == "SH-API-02"


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("a: [unclosed", "SH-RECIPE-01", "line 1"),
        ("just text", "SH-RECIPE-01", "mapping"),
        (shipped()["digits"].read_text().replace("channels: 16", "chanels: 16"), "SH-RECIPE-02", "chanels"),
        (shipped()["digits"].read_text().replace("rounds: 20", "rounds: 0"), "SH-RECIPE-02", "budget.rounds"),
        (shipped()["digits"].read_text().replace("batch_size: 32", "batch_size: 5000"), "SH-DATA-02", "5000"),
        (
            shipped()["digits"].read_text().replace("source: digits", "source: npz\n  path: /no/such.npz"),
            "SH-DATA-01",
            "such.npz",
        ),
    ],
)
def test_a_broken_recipe_is_answered_with_the_field(
    coordinator: Serving, http: httpx.Client, text: str, code: str, named: str
) -> None:
    answer = http.post("/api/v1/runs", content=text)
    assert answer.status_code == 422
    problem = _problem(answer)
    assert problem["code"] == code
    assert named in str(problem["detail"])
    with_blobs = {path.parts[-3] for path in coordinator.home.coordinator.glob("runs/*/blobs/*")}
    assert with_blobs == {run["run"] for run in http.get("/api/v1/runs").json()}


def test_a_recipe_too_large_to_be_one(http: httpx.Client) -> None:
    answer = http.post("/api/v1/runs", content=b"#" * (1 << 20) + b"x")
    assert answer.status_code == 413
    assert _problem(answer)["code"] == "SH-API-03"


def test_bytes_that_are_no_text(http: httpx.Client) -> None:
    answer = http.post("/api/v1/runs", content=b"\xff\xfe\xff")
    assert answer.status_code == 422
    assert _problem(answer)["code"] == "SH-API-03"


def test_a_body_of_the_wrong_form(digits: dict[str, str], http: httpx.Client) -> None:
    answer = http.post(f"/api/v1/runs/{digits['run']}/rewind", json={"to": -1})
    assert answer.status_code == 422
    problem = _problem(answer)
    assert problem["code"] == "SH-API-03"
    assert "to" in str(problem["detail"]) and "reason" in str(problem["detail"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nowhere", 404),
        ("DELETE", "/api/v1/runs", 405),
        ("GET", "/api/v1/runs/{run}/rounds?limit=0", 422),
    ],
)
def test_what_cannot_be_asked_has_a_code_too(
    digits: dict[str, str], http: httpx.Client, method: str, path: str, status: int
) -> None:
    problem = _problem(http.request(method, path.format(run=digits["run"])))
    assert (problem["status"], problem["code"]) == (status, "SH-API-03") and "/docs" in str(
        problem["next_step"]
    )


def test_a_rewind_to_nowhere(digits: dict[str, str], http: httpx.Client) -> None:
    answer = http.post(f"/api/v1/runs/{digits['run']}/rewind", json={"to": 3, "reason": "test"})
    assert answer.status_code == 409
    assert _problem(answer)["code"] == "SH-RUN-01"


def test_a_ticket_for_what_is_no_node_is_refused(digits: dict[str, str], http: httpx.Client) -> None:
    path = f"/api/v1/runs/{digits['run']}/tickets"
    assert _problem(http.post(path, json={"nodes": ["bob"]}))["code"] == "SH-CREDIT-02"
    assert http.post(path, json={"nodes": ["ab" * 20]}).is_success


def test_tickets_differ_and_may_expire(digits: dict[str, str], http: httpx.Client) -> None:
    path = f"/api/v1/runs/{digits['run']}/tickets"
    for_ever, brief = http.post(path).json(), http.post(path, json={"expires_s": 60}).json()
    assert for_ever["expires_ms"] is None
    assert brief["expires_ms"] > 0
    assert len({digits["ticket"], for_ever["ticket"], brief["ticket"]}) == 3


def test_metrics_are_for_this_machine(digits: dict[str, str], coordinator: Serving) -> None:
    text = httpx.get(coordinator.address + "/metrics").text
    assert f'shoal_round{{name="digits",run="{digits["run"]}"}} 0.0' in text
    assert coordinator.token not in text


def test_the_api_describes_itself(coordinator: Serving) -> None:
    described = httpx.get(coordinator.address + "/openapi.json").json()
    paths = described["paths"]
    assert {"/healthz", "/metrics", "/api/v1/runs", "/api/v1/runs/{run}"} <= set(paths)
    assert "waiting_for" in described["components"]["schemas"]["RunStatus"]["properties"]
    assert paths["/api/v1/runs"]["post"]["security"]


def test_a_wrong_address_says_so() -> None:
    with ApiClient("http://127.0.0.1:1", "x") as api, pytest.raises(ShoalError) as caught:
        api.runs()
    assert caught.value.code == "SH-API-04"


def test_a_run_with_a_node_from_submission_to_export(coordinator: Serving, tmp_path: Path) -> None:
    overrides = ["budget.rounds=2", "strategy.schedule.steps=2", "name=short"]
    recipe = load_recipe(shipped()["digits"], overrides=overrides, environment={})
    with coordinator.client() as api:
        submitted = api.submit(recipe.model_dump_json())
        command = [sys.executable, "-m", "shoal.apps.cli", "join", submitted.ticket]
        options = ["--home", str(tmp_path / "node"), "--name", "tester", "--threads", "1", "--device", "cpu"]
        joined = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert joined.returncode == 0, joined.stderr
        status = api.run(submitted.run)
        assert (status.state, status.stopped) == ("over", "2 rounds done")
        assert [item.round for item in status.losses] == [0, 1]
        assert all(item.train_loss and item.validation_loss for item in status.losses)
        assert [(node.name, node.state) for node in status.nodes] == [("tester", "gone")]
        assert status.snapshot.at == status.at > 0
        with pytest.raises(ShoalError) as caught:
            api.rewind(submitted.run, 0, "too late")
        assert caught.value.code == "SH-RUN-01"
        exported = export_run(api, submitted.run, tmp_path / "model")
    assert exported.final
    assert status.attested is not None and exported.state == status.attested.state
    assert load_file(tmp_path / "model" / "model.safetensors")
    readme = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert exported.loads_with == "shoal" and "transformers" not in readme and "shoal.training" in readme


def test_a_stopped_run_stays_stopped(coordinator: Serving) -> None:
    with coordinator.client() as api:
        run = api.submit(shipped()["digits"].read_text()).run
        assert api.stop(run, "enough").stopped == "enough"
        assert api.stop(run, "again").stopped == "enough"


def test_the_graph_of_all_checkpoints(
    coordinator: Serving, http: httpx.Client, digits: dict[str, str]
) -> None:
    graph = http.get("/api/v1/checkpoints").json()
    mine = [vertex for vertex in graph["vertices"] if vertex["run"] == digits["run"]]
    assert [vertex["position"] for vertex in mine] == [0], "a run begins with its first state"
    assert mine[0]["id"] in graph["heads"] and mine[0]["stored"] is True and not graph["absent"]
    with coordinator.client() as api:
        assert as_sent(api.dag()) == graph
    drawn = http.get("/api/v1/checkpoints/picture")
    assert drawn.headers["content-type"].startswith("image/svg+xml") and mine[0]["id"][:8] in drawn.text
    assert httpx.get(coordinator.address + "/api/v1/checkpoints").status_code == 401
