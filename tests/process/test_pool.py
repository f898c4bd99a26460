"""A machine that is lent to a pool works for the run that pays best, and for the next one when that is over."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import psutil

from shoal.apps.api.pooling import signed_offer
from shoal.wire.identity import Identity

from .fleet import START_S, TINY, Fleet
from .processes import Child, run_shoal


def submit(fleet: Fleet, name: str, price_micro: int) -> str:
    path = fleet.folder / f"{name}.yaml"
    path.write_text(json.dumps({**TINY, "name": name, "credit": {"price_micro": price_micro}}))
    done = run_shoal(["run", "submit", str(path), "--home", str(fleet.home), "--json"])
    assert done.status == 0, done
    return str(json.loads(done.out)["run"])


def shown(fleet: Fleet, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run_shoal(["run", "show", run, "--home", str(fleet.home), "--json"]).out
    )
    return found


def rounds_of(fleet: Fleet, run: str) -> int:
    return int(shown(fleet, run)["round"])


def test_one_machine_and_two_runs(fleet: Fleet) -> None:
    fleet.serve()
    place = ["--home", str(fleet.home)]
    dear, cheap = submit(fleet, "dear", 2000), submit(fleet, "cheap", 1000)
    address = (fleet.home / "coordinator" / "api-address").read_text().strip()
    token = fleet.home / "coordinator" / "lend-token"
    words = [
        "pool",
        "join",
        "--home",
        str(fleet.home_of("ada")),
        "--server",
        address,
        "--token-file",
        str(token),
    ]
    lent = Child(words, fleet.folder / "logs" / "ada", fleet.environment)
    try:
        fleet.until(lambda: rounds_of(fleet, dear) > 0, START_S, "rounds of the run that pays more")
        assert rounds_of(fleet, cheap) == 0
        listed = json.loads(run_shoal(["pool", "list", *place, "--json"]).out)
        assert [one["run"] for one in listed] == [dear]
        assert run_shoal(["run", "stop", dear, *place]).status == 0
        fleet.until(lambda: rounds_of(fleet, cheap) > 0, START_S, "rounds of the other")
        assert f"works for run {cheap[:12]}" in lent.said()
        assert shown(fleet, dear)["state"] == "over", "it saved the last state of the first before it left"
        refuse_liars(address, token.read_text().strip())
    finally:
        joined = psutil.Process(lent.process.pid).children()
        lent.kill()
    assert len(joined) == 1
    assert psutil.wait_procs(joined, timeout=60)[1] == [], (
        "the `shoal join` outlives whoever lent the machine"
    )


def refuse_liars(address: str, token: str) -> None:
    """Who did not sign an offer, or signed it for another, or says it again, is not believed; and such a token opens
    nothing else."""
    http = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"})
    coordinator = http.get("/healthz").json()["coordinator"]
    values = {"coordinator": coordinator, "at_ms": time.time_ns() // 10**6, "speed": 1.0, "memory_bytes": 1}
    good = signed_offer(Identity.generate(), values)
    assert http.post("/api/v1/pool", json=good).status_code == 200
    other = signed_offer(Identity.generate(), {**values, "coordinator": "0" * 40})
    for bad in (good, {**good, "speed": 2.0}, other):
        answer = http.post("/api/v1/pool", json=bad)
        assert (answer.status_code, answer.json()["code"]) == (403, "SH-POOL-02")
    assert http.get("/api/v1/runs").status_code == 403
    assert http.get("/api/v1/pool").status_code == 403
