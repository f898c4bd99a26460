"""Killed by SIGKILL at named points, started again in the same home: nothing durable is lost or said twice.

Leases are longer than a restart here, so a round waits for whoever was killed in it: a claim that was durable at
the death must then be sealed, byte for byte.
"""

from __future__ import annotations

import pytest

from .fleet import Fleet, tiny, with_deadline
from .referee import check_log, check_settled, claim_in, end_run, kept_claims, outbox, settled, stored_log

PATIENT = tiny(strategy=with_deadline(60.0), membership={"lease_s": 60.0, "reconnect_s": 60.0})

# A claim is two atomic writes: the local state, then the outbox. So an odd count dies in the first of the two.
NODE_POINTS = [
    "write.before-sync:5",
    "write.before-sync:6",
    "write.after-rename:5",
    "write.after-rename:6",
    "write.durable:6",
    "log.before-sync:9",
    "log.durable:9",
    "blob.before-sync:6",
    "blob.after-rename:6",
    "node.before-outbox:3",
    "node.after-outbox:3",
    "node.before-claim:3",
]
DURABLE_UNSENT = {"write.after-rename:6", "write.durable:6", "node.after-outbox:3", "node.before-claim:3"}
# In turn before and after a plan, a seal and attestations.
COORDINATOR_POINTS = [
    "coordinator.before-append:7",
    "coordinator.before-append:8",
    "coordinator.before-append:9",
    "coordinator.after-append:7",
    "coordinator.after-append:8",
    "coordinator.after-append:9",
    "coordinator.after-keep:3",
    "coordinator.after-keep:4",
    "blob.before-sync:1",
    "blob.after-rename:1",
]


@pytest.fixture(scope="module")
def training(fleet: Fleet) -> Fleet:
    """A coordinator and one node that is never killed."""
    fleet.serve(PATIENT)
    fleet.join("anchor")
    fleet.contributes("anchor")
    return fleet


@pytest.mark.parametrize("point", NODE_POINTS)
def test_a_killed_node_sends_the_same_bytes_again(training: Fleet, point: str) -> None:
    training.join("victim", failpoint=f"{point}:KILL").killed_itself(within_s=40.0)
    durable = outbox(training, "victim")
    before = training.links()

    training.join("victim")
    training.contributes("victim", after=before[-1].entry.position)

    if point in DURABLE_UNSENT:
        assert durable is not None
        claim = claim_in(durable)
        assert settled(before)[claim.node, claim.sequence] == 0
    if durable is not None:
        check_settled(training.links(), [durable])
    check_log(training.links())
    training.nodes["victim"].kill()


@pytest.fixture(scope="module")
def two(training: Fleet) -> Fleet:
    """Both nodes at work."""
    training.join("victim")
    training.contributes("victim", after=training.length())
    return training


@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_a_killed_coordinator_goes_on_and_keeps_its_word(two: Fleet, point: str) -> None:
    assert two.coordinator is not None
    two.coordinator.kill()
    two.serve(failpoint=f"{point}:KILL")
    two.coordinator.killed_itself(within_s=40.0)
    promised, known = kept_claims(two), [link.hash for link in stored_log(two)]
    assert all(child.alive for child in two.nodes.values()), two.logs()

    two.serve()
    two.seals_after(len(known), count=2)

    links = two.links()
    assert [link.hash for link in links[: len(known)]] == known
    check_settled(links, promised)
    check_log(links)


def test_the_whole_of_it_verifies_and_replays(two: Fleet) -> None:
    links = end_run(two)
    assert len(links) > 50
