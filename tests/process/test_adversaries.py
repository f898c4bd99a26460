"""Real nodes that attack a real run: what they stop, which is nothing, and what becomes of them."""

from __future__ import annotations

import json

import pytest

from shoal.runlog.entries import Ban

from .fleet import START_S, Fleet, tiny
from .processes import run_shoal

HOSTILE = ("--unsafe-adversary", "--adversary")
SMALL_WAITS = {"lease_s": 2.0, "heartbeat_s": 0.2, "reconnect_s": 1.0}


@pytest.fixture(scope="module")
def attacked(fleet: Fleet) -> Fleet:
    recipe = tiny(membership={**SMALL_WAITS, "min_nodes": 4}, budget={"rounds": 100_000})
    fleet.serve({**recipe, "audit": {"rate": 1.0, "ban_s": 3600}})
    for name in ("ann", "bob", "cem"):
        fleet.join(name, "--max-up", "40kB/s")
    return fleet


def test_a_forger_is_found_banned_and_told_and_anyone_can_check_it(attacked: Fleet) -> None:
    forger = attacked.join("eve", *HOSTILE, "sign-flip")
    node = attacked.node_id("eve")

    def banned() -> Ban | None:
        bodies = [link.entry.body for link in attacked.links()]
        return next((body for body in bodies if isinstance(body, Ban)), None)

    ban = attacked.until(banned, 3 * START_S, "a ban")
    assert ban.node == node
    assert forger.ended(START_S) == 1
    said = forger.said()
    assert "SH-JOIN-13" in said and "forged" in said and "shoal run unban" in said and "UNSAFE" in said
    listed = run_shoal(["audit", "list", *attacked.place, "--json"])
    cases = json.loads(listed.out)["cases"]
    convicted = [case for case in cases if case["outcome"] == "forged"]
    assert convicted and {case["author"] for case in convicted} == {node}
    checked = run_shoal(["audit", "check", *attacked.place, "--json"])
    found = json.loads(checked.out)["checked"]
    assert checked.status == 0 and any(one["holds"] for one in found), checked
    attacked.contributes("ann", after=attacked.length())


def test_attacks_on_the_protocol_stop_nobody(attacked: Fleet) -> None:
    names = ("withheld-blob", "bad-chunks", "equivocation")
    for name in names:
        attacked.join(name, *HOSTILE, name)
    for name in names:
        attacked.contributes(name, within_s=2 * START_S)
    for honest in ("ann", "bob"):
        attacked.contributes(honest, after=attacked.length())
    for name in names:
        attacked.nodes.pop(name).kill()


@pytest.mark.long
def test_a_person_bans_and_lets_in_again(attacked: Fleet) -> None:
    place = ["--home", str(attacked.home)]
    done = run_shoal(["run", "ban", attacked.run, "cem", "--for", "1h", "--reason", "too loud", *place])
    assert done.status == 0 and "banned for 1h" in done.out, done
    node = attacked.nodes["cem"]
    assert node.ended(START_S) == 1 and "SH-JOIN-13" in node.said() and "too loud" in node.said()
    assert attacked.join("cem").ended(START_S) == 1
    done = run_shoal(["run", "unban", attacked.run, "cem", *place])
    assert done.status == 0 and "may join again" in done.out, done
    attacked.join("cem", "--max-up", "40kB/s")
    attacked.contributes("cem", after=attacked.length())


def test_nobody_lies_by_accident() -> None:
    done = run_shoal(["join", "shoal1-x", "--adversary", "sign-flip"])
    assert done.status != 0
