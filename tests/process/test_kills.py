"""Killed by SIGKILL at named points, started again in the same home: nothing durable is lost or said twice.

Leases are longer than a restart here, so a round waits for whoever was killed in it: a claim that was durable at
the death must then be sealed, byte for byte. Torch takes seconds to start, so the process that is started again
after one death is already the one that will die at the next point: later, once it has proved itself.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.runlog.chain import Link
from shoal.runlog.entries import Seal
from shoal.wire.signed import Signed

from .fleet import START_S, Fleet, accepted_claims, tiny, with_deadline
from .processes import Child
from .referee import check_log, check_settled, claim_in, end_run, kept_claims, outbox, settled, stored_log

PATIENT = tiny(
    strategy=with_deadline(60.0),
    membership={"lease_s": 60.0, "reconnect_s": 60.0},
    storage={"snapshot_every": 2},
)

# A claim is two atomic writes: the local state, then the outbox. So an odd count dies in the first of the two.
# All counts lie beyond the first two claims after a start.
NODE_POINTS = [
    "write.before-sync:5",
    "write.before-sync:6",
    "write.after-rename:6",
    "write.durable:6",
    "log.before-sync:25",
    "log.durable:25",
    "blob.before-sync:9",
    "blob.after-rename:9",
    "node.before-outbox:3",
    "node.after-outbox:3",
    "node.before-claim:3",
    "node.after-claim:3",
]
DURABLE_UNSENT = {"write.after-rename:6", "write.durable:6", "node.after-outbox:3", "node.before-claim:3"}
# All counts lie beyond the first seal after a start.
COORDINATOR_POINTS = [
    "coordinator.before-seal:3",
    "coordinator.after-seal:3",
    "coordinator.before-plan:3",
    "coordinator.after-plan:3",
    "coordinator.before-attestations:3",
    "coordinator.after-attestations:3",
    "coordinator.before-snapshot:2",
    "coordinator.after-snapshot:2",
    "coordinator.after-keep:5",
    "coordinator.after-keep:6",
    "blob.before-sync:6",
    "blob.after-rename:6",
]


class Relay:
    """One process after another in the same home, each to die at a point."""

    def __init__(self, points: list[str], start: Callable[[str], Child]) -> None:
        self._next = dict(zip(points, [*points[1:], ""], strict=True))
        self._start = start
        self._armed = ""
        self.child: Child | None = None

    def die_at(self, point: str) -> None:
        if self._armed != point:
            self._arm(point)
        assert self.child is not None
        self.child.killed_itself(within_s=START_S)

    def start_again(self, point: str) -> None:
        """After the death at `point`, armed for the one that comes next, unless catching up could reach that: whoever
        was left out while it started has many blobs and entries to fetch before it proves itself."""
        coming = self._next[point]
        self._arm("" if coming.startswith(("blob.", "log.")) else coming)

    def _arm(self, point: str) -> None:
        if self.child is not None:
            self.child.kill()
        self._armed = point
        self.child = self._start(f"{point}:KILL" if point else "")


@pytest.fixture(scope="module")
def training(fleet: Fleet) -> Fleet:
    """A coordinator and one node that is never killed."""
    fleet.serve(PATIENT)
    fleet.join("anchor")
    fleet.contributes("anchor")
    return fleet


@pytest.fixture(scope="module")
def victim(training: Fleet) -> Relay:
    return Relay(NODE_POINTS, lambda failpoint: training.join("victim", failpoint=failpoint))


@pytest.mark.parametrize("point", NODE_POINTS)
def test_a_killed_node_sends_the_same_bytes_again(training: Fleet, victim: Relay, point: str) -> None:
    victim.die_at(point)
    durable, before = outbox(training, "victim"), training.links()

    victim.start_again(point)
    training.contributes("victim", after=before[-1].entry.position)

    links = training.links()
    check_log(links)
    if durable is not None:
        check_settled(links, [durable])
    if point in DURABLE_UNSENT:
        assert durable is not None
        assert _open(before, [durable]) == [durable]
    if point.startswith("node.after-claim"):
        assert durable is not None and _sealed_bytes(links, durable), (
            "said or not, it is sealed as it was said"
        )


@pytest.fixture(scope="module")
def two(training: Fleet) -> Fleet:
    """Both nodes at work, the coordinator about to be the victim."""
    if "victim" not in training.nodes or not training.nodes["victim"].alive:
        training.join("victim")
    training.contributes("victim", after=training.length())
    assert training.coordinator is not None
    training.coordinator.kill()
    return training


@pytest.fixture(scope="module")
def coordinator(two: Fleet) -> Relay:
    return Relay(COORDINATOR_POINTS, lambda failpoint: two.serve(failpoint=failpoint))


@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_a_killed_coordinator_keeps_its_word(two: Fleet, coordinator: Relay, point: str) -> None:
    coordinator.die_at(point)
    promised, before = kept_claims(two), stored_log(two)
    _check_where(point, promised, before)
    assert all(child.alive for child in two.nodes.values())

    coordinator.start_again(point)
    # From its store, not its API: it may be dead again by now.
    two.until(lambda: _sealed(stored_log(two, len(before))), START_S, f"a seal after {len(before)}")

    links = stored_log(two)
    assert [link.hash for link in links[: len(before)]] == [link.hash for link in before]
    check_log(links)
    check_settled(links, promised)


def _check_where(point: str, promised: list[Signed], before: list[Link]) -> None:
    """The store shows that the coordinator died just there."""
    place, _, kind = point.removeprefix("coordinator.").partition(":")[0].partition("-")
    last = type(before[-1].entry.body).__name__.lower()
    if place == "after" and kind != "keep":
        assert last == kind
    if kind == "seal":
        # The claims of the round are kept before it is sealed, and dropped only after.
        assert promised and _open(before, promised) == (promised if place == "before" else [])
    if kind == "plan" and place == "before":
        assert last != "plan"
    if kind == "keep":
        assert _open(before, promised)


def _open(links: list[Link], claims: list[Signed]) -> list[Signed]:
    """Those that no entry settles."""
    counts = settled(links)
    opened = [(claim_in(signed), signed) for signed in claims]
    return [signed for claim, signed in opened if not counts[claim.node, claim.sequence]]


def _sealed_bytes(links: list[Link], claim: Signed) -> bool:
    return any(claim == signed for link in links for _, signed in accepted_claims(link))


def _sealed(links: list[Link]) -> bool:
    return any(isinstance(link.entry.body, Seal) for link in links)


def test_the_whole_of_it_verifies_and_replays(two: Fleet) -> None:
    if two.coordinator is None or not two.coordinator.alive:
        two.serve()
    links = end_run(two)
    assert {link.entry.term for link in links} > {1}  # Every start of a coordinator had a term of its own.
