"""Updates that leave once, in coded pieces: they survive their author, and nobody can spoil them."""

from __future__ import annotations

from collections import Counter

from shoal.base.host import Peer
from shoal.base.ids import BlobId, NodeId
from shoal.node.service import NodeService
from shoal.replica.pieces import cut_pieces
from shoal.runlog.work import Planned
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import SimNetwork

from .harness import Fleet, toy_recipe

CODED = toy_recipe(
    storage={"pieces": {"k": 2, "n": 4}, "archive": False, "receipts": 2, "snapshot_every": 100},
    evaluation={"every": 1000},
)


async def stand_together(fleet: Fleet) -> None:
    """Until everybody has the same state, which is the same for all."""
    await fleet.until(lambda: len({at for at, _ in fleet.states().values()}) == 1, 60, "standing together")
    assert len(set(fleet.states().values())) == 1


def test_rounds_go_on_in_pieces_and_everybody_agrees() -> None:
    fleet = Fleet(nodes=5, recipe=CODED)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)
        await stand_together(fleet)

    fleet.play(story)
    for step in fleet.view.path:
        for update in step.updates:
            assert len(update.claim.pieces) == 4 and update.claim.pieces_needed == 2
            assert len({number for number, _ in update.pieces}) >= 3, "survives its author and one holder"


def test_an_author_that_dies_with_its_claim_out_is_still_folded() -> None:
    fleet = Fleet(nodes=5, recipe=CODED)
    author = fleet.machines["n0"].identity.node
    fleet.machines["n1"].speed = 0.1  # The seal waits for it, long after the author is dead.
    others = ("n1", "n2", "n3", "n4")

    def acknowledged() -> int:
        return max((number for node, number in fleet.referee.acknowledged if node == author), default=-1)

    def sealed() -> int:
        steps = [step for step in fleet.view.path for update in step.updates if update.claim.node == author]
        return steps[-1].position if steps else 0

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        before, known = sealed(), acknowledged()
        await fleet.until(lambda: acknowledged() > known, 60, "its next claim")
        assert sealed() == before
        fleet.kill("n0")
        await fleet.until(lambda: sealed() > before, 60, "its update in a seal")
        at = sealed()
        await fleet.until(
            lambda: all(fleet.states().get(name, (0, ""))[0] >= at for name in others), 60, "everybody's fold"
        )

    fleet.play(story)
    assert fleet.view.rewound_at < 0, "nothing was undone for it"


class Counting(SimNetwork):
    """Counts what each host gives of each blob."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.given: Counter[tuple[NodeId, str]] = Counter()

    async def get(
        self, here: SimHost, peer: Peer, path: str, start: int, stop: int, timeout_s: float
    ) -> bytes:
        data = await super().get(here, peer, path, start, stop, timeout_s)
        self.given[peer.node, path.split("/")[-1]] += len(data)
        return data


def test_a_slow_uplink_is_asked_once() -> None:
    fleet = Fleet(nodes=5, recipe=CODED, size=3000)
    fleet.network = counting = Counting(fleet.loop)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)

    fleet.play(story)
    authored = [update for step in fleet.view.path for update in step.updates]
    asked = sum(counting.given[update.claim.node, update.claim.blob] for update in authored)
    sizes = sum(update.claim.size_bytes for update in authored)
    assert asked < sizes / 4, "hardly anybody asks the author itself"


def test_hostile_pieces_poison_nothing() -> None:
    fleet = Fleet(nodes=5, recipe=CODED)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        fleet.network.faults.corrupt = 0.2
        await fleet.rounds(4)
        fleet.network.faults.corrupt = 0.0
        await stand_together(fleet)

    fleet.play(story)


class Cheat(NodeService):
    """Cuts something else than it claims."""

    async def _cut(self, planned: Planned, data: bytes) -> tuple[BlobId, ...]:
        return tuple(self.blobs.put(piece) for piece in cut_pieces(data[::-1], 2, 4))


def test_an_author_that_cuts_something_else_makes_nobody_fold_it() -> None:
    fleet = Fleet(nodes=5, recipe=CODED)
    fleet.lies("n1", Cheat)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4, 200)
        await stand_together(fleet)

    fleet.play(story)
    assert any("n1" in fleet.contributors(step.position) for step in fleet.view.path), (
        "it gave its update itself"
    )


def test_where_the_planner_decides_those_it_does_not_name_send_whole_updates() -> None:
    how = {"k": 2, "n": 4, "when": "planned"}
    fleet = Fleet(nodes=3, recipe=toy_recipe(storage={"pieces": how, "snapshot_every": 100}))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)

    fleet.play(story)
    assert not any(update.claim.pieces for step in fleet.view.path for update in step.updates)
