"""Keys of real processes: a run with hybrid signatures, in which a node's key and the coordinator's are replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.runlog.entries import Revoked, Rotated
from shoal.wire.hybrid import HYBRID_SIGNATURE_BYTES
from shoal.wire.signed import Signed, parse

from .fleet import TINY, Fleet, accepted_claims
from .processes import run_shoal
from .referee import end_run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> Fleet:
    membership = {**TINY["membership"], "min_nodes": 2}
    fleet.serve({**TINY, "membership": membership, "identity": {"signatures": "hybrid"}})
    for name in ("ada", "ben"):
        fleet.join(name)
    for name in ("ada", "ben"):
        fleet.contributes(name)
    return fleet


def keys(home: Path, *arguments: str) -> dict[str, Any]:
    done = run_shoal(["keys", *arguments, "--home", str(home), "--json"])
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_every_claim_and_entry_carries_both_signatures(two: Fleet) -> None:
    for link in two.links():
        signed = parse(link.encoded, Signed)
        assert signed is not None and len(signed.signature) == HYBRID_SIGNATURE_BYTES
        assert all(len(claim.signature) == HYBRID_SIGNATURE_BYTES for _, claim in accepted_claims(link))


def test_a_node_whose_key_is_replaced_goes_on_as_the_same_member(two: Fleet) -> None:
    node, before = two.node_id("ada"), keys(two.home_of("ada"), "show")
    two.nodes["ada"].kill()
    after = keys(two.home_of("ada"), "rotate")
    assert after["node"] == before["node"] == node and after["key"] != before["key"]
    length = two.length()
    two.join("ada")
    link = two.contributes("ada", after=length)
    changes = [one.entry for one in two.links() if isinstance(one.entry.body, Rotated)]
    assert [one.body.node for one in changes] == [node]
    assert changes[0].position < link.entry.position
    assert two.status()["members"] == 2, "nobody new"


def test_a_coordinator_whose_key_is_replaced_goes_on_with_the_same_run(two: Fleet) -> None:
    coordinator = two.coordinator_id()
    assert two.coordinator is not None
    two.coordinator.kill()
    keys(two.home, "rotate", "--coordinator")
    two.serve()
    length = two.length()
    two.contributes("ben", after=length)
    changed = [one.entry.body.node for one in two.links() if isinstance(one.entry.body, Rotated)]
    assert changed[-1] == coordinator == two.coordinator_id()


def test_the_organiser_revokes_a_nodes_keys_and_the_node_is_told(two: Fleet) -> None:
    cem = two.join("cem")
    two.contributes("cem", after=two.length())
    said = keys(two.home, "revoke", "--run", two.run, "--node", "cem", "--reason", "cheated")
    assert said["node"] == two.node_id("cem")
    two.until(lambda: not cem.alive, 40, "cem to go")
    assert "SH-KEY-04" in cem.err.read_text()
    del two.nodes["cem"]


def test_a_holder_revokes_its_keys_and_does_not_come_back(two: Fleet) -> None:
    node = two.node_id("ben")
    two.nodes["ben"].kill()
    keys(two.home_of("ben"), "revoke", "--ticket", two.ticket, "--reason", "stolen")

    def gone() -> list[tuple[str, str, bool]]:
        found = [one.entry.body for one in two.links() if isinstance(one.entry.body, Revoked)]
        return [(one.node, one.reason, one.word is not None) for one in found]

    two.until(lambda: len(gone()) == 2, 30, "the entry of a revocation")
    assert gone() == [(two.node_id("cem"), "cheated", False), (node, "stolen", True)]
    again = two.join("ben")
    two.until(lambda: not again.alive, 40, "ben to give up")
    assert "SH-KEY-04" in again.err.read_text()
    two.contributes("ada", after=two.length())
    del two.nodes["ben"]  # It has no more of the log than when it was killed.
    end_run(two)
