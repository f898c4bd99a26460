"""The API against its own description: whatever fits it, and much that does not, gets an answer that is no 500."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error

from shoal.apps.recipes import shipped

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("described")) as found:
        with found.client() as api:
            api.submit(shipped()["digits"].read_text())
        yield found


def test_every_operation_answers_whatever_is_asked(coordinator: Serving) -> None:
    schema = schemathesis.openapi.from_url(coordinator.address + "/openapi.json")
    run = httpx.get(coordinator.address + "/api/v1/runs", headers=_token(coordinator)).json()[0]["run"]
    operations = [result.ok() for result in schema.get_all_operations()]
    asked = [_probe(operation, run, _token(coordinator)) for operation in operations]
    assert len(asked) >= 25
    assert all(asked)


def _probe(operation: Any, run: str, headers: dict[str, str]) -> int:
    """Ask for one operation in several ways, half of them about a run that there is; how many were answered."""
    answered = 0

    @hypothesis.settings(
        max_examples=4, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        nonlocal answered
        if "run" in case.path_parameters and answered % 2 == 0:
            case.path_parameters["run"] = run
        answer = case.call(headers=headers, timeout=30)
        case.validate_response(answer, checks=[not_a_server_error])
        answered += 1

    ask()
    return answered


def test_the_description_is_complete(coordinator: Serving) -> None:
    document = httpx.get(coordinator.address + "/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
    named = [schema for schema in document["components"]["schemas"].values() if "properties" in schema]
    assert all("example" in schema for schema in named)


def test_examples_are_accepted_where_they_are_asked_for(coordinator: Serving) -> None:
    """Of those that a person would copy: the check of the recipe in the description."""
    document = httpx.get(coordinator.address + "/openapi.json").json()
    body = document["paths"]["/api/v1/recipes/check"]["post"]["requestBody"]["content"]["application/yaml"][
        "example"
    ]
    answer = httpx.post(
        coordinator.address + "/api/v1/recipes/check", content=body, headers=_token(coordinator)
    )
    assert answer.json()["ok"] is True, answer.text


def test_the_coordinator_is_alive_after_all_that(coordinator: Serving) -> None:
    assert httpx.get(coordinator.address + "/healthz").json()["ok"] is True
    assert any(thread.name == "coordinator" for thread in threading.enumerate())


def _token(coordinator: Serving) -> dict[str, str]:
    return {"Authorization": f"Bearer {coordinator.token}"}
