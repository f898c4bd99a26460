"""What a page hears: the whole picture once, then what changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from shoal.apps.api.live import FRAMES_KEPT, Watcher
from shoal.apps.recipes import shipped

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("live")) as found:
        yield found


def heard(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next frame of this kind."""
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(timeout=20))
        if frame["type"] == kind:
            return frame


def test_a_page_gets_everything_and_then_what_changed(coordinator: Serving) -> None:
    with coordinator.client() as api:
        run = api.submit(shipped()["digits"].read_text()).run
        with connect(coordinator.address.replace("http", "ws") + "/api/v1/live") as socket:
            socket.send(json.dumps({"token": coordinator.token, "run": run}))
            assert heard(socket, "welcome")["scope"] == "admin"
            full = heard(socket, "full")
            assert [item["run"] for item in full["runs"]] == [run]
            api.pause(run, "lunch")
            news: dict[str, Any] = {}
            while "events" not in news or not news["runs"]:
                frame = heard(socket, "delta")
                news = {**news, **{name: value for name, value in frame.items() if value}}
            assert news["runs"][0]["paused"] == "lunch"
            assert news["events"][-1]["kind"] == "run_paused"
            assert "nodes" not in news
            api.stop(run, "enough")


def test_events_are_filtered_and_paged(coordinator: Serving) -> None:
    with coordinator.client() as api:
        run = api.submit(shipped()["digits"].read_text()).run
        for _ in range(3):
            api.pause(run, "a while")
            api.resume(run)
        every = api.events(run).items
        assert [event.kind for event in every][:2] == ["run_resumed", "run_paused"]
        paused = api.events(run, kind="run_paused", limit=2)
        assert (paused.total, len(paused.items)) == (3, 2)
        rest = api.events(run, kind="run_paused", limit=2, before=paused.next)
        assert (len(rest.items), rest.next) == (1, None)
        assert api.events(run, text="A WHILE").total == 3
        assert api.events(run, level="error").items == []


def test_a_change_that_may_not_be_is_refused(coordinator: Serving) -> None:
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    with coordinator.client() as api:
        run = api.submit(shipped()["digits"].read_text()).run
        refused = (
            ({"inner.lr": 1}, "02"),
            ({"budget.rounds": 0}, "02"),
            ({"budget.rounds": True}, "02"),
            ({"membership.lease_s": 0.1}, "03"),
        )
        for changes, number in refused:
            path = f"{coordinator.address}/api/v1/runs/{run}/parameters"
            answer = httpx.post(path, json={"changes": changes}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, f"SH-RECIPE-{number}"), changes
        assert api.change(run, {"budget.rounds": 7}).parameters["budget.rounds"] == 7
        assert api.change(run, {"storage.archive": False}).parameters["budget.rounds"] == 7


def test_who_reads_too_slowly_gets_the_whole_picture_again() -> None:
    watcher = Watcher()
    watcher.fresh = False
    for number in range(FRAMES_KEPT + 1):
        watcher.put(str(number))
    assert watcher.fresh
    assert not watcher.frames
