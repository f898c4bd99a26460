"""A run of regions and the pool: who is told to lead, who is given which ticket, and what is refused."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from shoal.apps.api.models import PoolPlace
from shoal.apps.api.pooling import signed_offer
from shoal.apps.home import read_secret
from shoal.base.ids import NodeId, RunId
from shoal.wire.identity import Identity
from shoal.wire.ticket import Ticket, read_ticket, show_ticket

from .serving import Serving, serving

RECIPE = {
    "name": "regions",
    "model": {"kind": "mlp", "width": 4, "layers": 1},
    "data": {"source": "digits"},
    "inner": {"kind": "sgd", "lr": 0.1, "batch_size": 8},
    "budget": {"rounds": 100},
    "strategy": {"preset": "halos"},
    "membership": {"lease_s": 0.3, "heartbeat_s": 0.1, "reconnect_s": 0.1},
}
TIMES = itertools.count(1)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("coordinator")) as made:
        yield made


class Pool:
    """Machines that offer themselves."""

    def __init__(self, coordinator: Serving) -> None:
        token = read_secret(coordinator.home.coordinator / "lend-token")
        self._http = httpx.Client(
            base_url=coordinator.address, headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        self._coordinator = self._http.get("/healthz").json()["coordinator"]

    def ask(self, machine: Identity, **said: Any) -> httpx.Response:
        values = {
            "coordinator": self._coordinator,
            "at_ms": next(TIMES),
            "speed": 1.0,
            "memory_bytes": 1,
            **said,
        }
        return self._http.post("/api/v1/pool", json=signed_offer(machine, values))

    def until(self, wanted: str, *offers: tuple[Identity, dict[str, Any]]) -> dict[str, Any]:
        """They offer themselves until the first is told this; what it was told."""
        deadline = time.monotonic() + 60
        while True:
            told = [self.ask(machine, **said).json() for machine, said in offers]
            if told[0].get(wanted):
                return dict(told[0])
            assert time.monotonic() < deadline, told


def hub_of(machine: Identity, number: int, address: str) -> dict[str, Any]:
    ticket = show_ticket(Ticket(machine.node, (address,), RunId("e" * 32), "secret"))
    return {"hub_address": address, "label": "near", "serves": number, "region_ticket": ticket}


def test_from_the_first_offer_to_a_members_ticket(coordinator: Serving) -> None:
    pool, ada, bob, eve = Pool(coordinator), *(Identity.generate() for _ in range(3))
    with coordinator.client() as api:
        run = api.submit(json.dumps(RECIPE)).run
        follower = (bob, {"label": "near"})
        told = pool.ask(bob, label="near").json()
        assert told["run"] is None, "it cannot work for a run of regions while nobody may be a hub"
        leader = (ada, {"hub_address": "127.0.0.1:4000", "label": "near"})
        told = pool.until("hub_ticket", leader, follower)
        assert (told["run"], told["ticket"]) == (run, None) and read_ticket(told["hub_ticket"]).run == run
        told = pool.ask(bob, label="near").json()
        assert (
            told["region"] == 1
            and told["hub_ticket"] is None
            and told["probe"] == {ada.node: "127.0.0.1:4000"}
        )
        hub = hub_of(ada, 1, "127.0.0.1:4000")
        told = pool.until("ticket", follower, (ada, hub))
        assert told["ticket"] == hub["region_ticket"]
        told = pool.ask(eve, label="elsewhere", serves=1).json()
        assert told["ticket"] is None and told["region"] is None, (
            "a stranger to the region is not shown its ticket"
        )
        status = api.run(run)
        assert [(one.hub, one.members) for one in status.regions] == [
            (ada.node, sorted([ada.node, bob.node]))
        ]
        listed = {one.node: (one.region, one.leads) for one in api.pool()}
        assert listed[ada.node] == (1, True) and listed[bob.node] == (1, False)
        api.stop(run, "enough")
        assert pool.ask(bob, label="near").json()["run"] is None


@pytest.mark.parametrize(
    "said",
    [
        {"hub_address": "nowhere"},
        {"hub_address": "host:0"},
        {"hub_address": "host:4000", "region_ticket": "shoal1-rubbish", "serves": 1},
        hub_of(Identity.generate(), 1, "elsewhere:4000") | {"hub_address": "host:4000"},
    ],
    ids=["no address", "no port", "no ticket", "a ticket that leads elsewhere"],
)
def test_what_no_hub_can_be(coordinator: Serving, said: dict[str, Any]) -> None:
    answer = Pool(coordinator).ask(Identity.generate(), **said)
    assert (answer.status_code, answer.json()["code"]) == (422, "SH-POOL-03")


@pytest.mark.parametrize(
    "said",
    [
        {"trips": {"x": 1.0}},
        {"trips": {NodeId("a" * 40): -1.0}},
        {"trips": {NodeId(f"{n:040x}"): 1.0 for n in range(17)}},
        {"label": "x" * 65},
        {"region_ticket": "x" * 5000},
    ],
)
def test_words_that_are_too_many_or_no_words(coordinator: Serving, said: dict[str, Any]) -> None:
    assert Pool(coordinator).ask(Identity.generate(), **said).status_code == 422


@pytest.mark.parametrize("run", ["../../x", "*", "/etc", "A" * 32])
def test_a_run_that_a_lent_machine_would_make_a_folder_of_is_a_runs_id(run: str) -> None:
    with pytest.raises(ValidationError):
        PoolPlace(run=run, ticket=None, reason="", ask_again_s=1.0)
