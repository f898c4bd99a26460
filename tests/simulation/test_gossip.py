"""Nodes that meet in pairs: one log, one state, and models that come closer without everybody's bytes."""

import asyncio
from typing import Any

import torch

from shoal.base.host import Peer
from shoal.base.ids import BlobId
from shoal.runlog.pairs import matching
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.liars import Garbler, Withholder

from .harness import DEADLINE_S, Fleet, toy_recipe


def _fleet(nodes: int, every: int, **more: Any) -> Fleet:
    strategy = {
        "preset": "gossip",
        "schedule": {"steps": 3, "fragments": 2},
        "codec": {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
        "merge": {"kind": "pairs", "global_every": every},
    }
    membership = {"min_nodes": nodes, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}
    recipe = toy_recipe(strategy=strategy, membership=membership, **more.pop("recipe", {}))
    return Fleet(nodes=nodes, recipe=recipe, **more)


def _taken(fleet: Fleet) -> dict[tuple[str, BlobId], int]:
    """Count what every machine fetches, from now on."""
    taken: dict[tuple[str, BlobId], int] = {}
    get = fleet.network.get

    async def counted(here: SimHost, peer: Peer, path: str, start: int, stop: int, timeout_s: float) -> bytes:
        data = await get(here, peer, path, start, stop, timeout_s)
        kind = path.split("/")[1:]
        if kind[0] == "blobs":
            key = here.name, BlobId(kind[1])
            taken[key] = taken.get(key, 0) + len(data)
        return data

    fleet.network.get = counted  # type: ignore[method-assign]
    return taken


def test_a_node_fetches_its_partners_update_and_no_other_in_rounds_of_pairs() -> None:
    fleet = _fleet(6, every=100, recipe={"storage": {"snapshot_every": 100, "archive": False}})
    taken = _taken(fleet)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(6)
        await asyncio.sleep(3)

    fleet.play(story)
    names = {fleet.id_of(name): name for name in fleet.machines}
    for step in fleet.view.path[:5]:
        assert step.pairs
        met = matching(fleet.view.hashes[step.position], step.updates)
        partner = {m.other.claim.blob: names[m.own.claim.node] for m in met if m.other}
        for update in step.updates:
            fetchers = {host for host, blob in taken if blob == update.claim.blob}
            assert fetchers <= {partner[update.claim.blob]}


def test_partners_go_on_from_one_model_and_the_state_stays() -> None:
    fleet = _fleet(4, every=100)
    first = fleet._trainer().params().clone()

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)

    fleet.play(story)
    assert all(step.pairs for step in fleet.view.path)
    assert all(torch.equal(m.node.state.params, first) for m in fleet.nodes if m.node.state)
    # Each node's next update is the pair's mean model, and what it trained since: with a toy that is all alike but
    # for the samples' noise, partners are as close to one another as two runs of three steps are.
    last, before = fleet.view.path[-1], fleet.view.path[-2]
    values = {u.claim.node: fleet.update_of(u.claim, u.place) for u in last.updates}
    met = matching(fleet.view.hashes[before.position], before.updates)
    pairs = [(m.own.claim.node, m.other.claim.node) for m in met if m.other]
    apart = [float((values[one] - values[two]).abs().max()) for one, two in pairs]
    assert max(apart) < 0.2 < float(max(v.abs().max() for v in values.values()))


def test_everybodys_round_folds_what_was_trained_in_all_rounds_before() -> None:
    long, short = _fleet(3, every=4), _fleet(3, every=1)

    def story_of(fleet: Fleet, rounds: int) -> Any:
        async def story() -> None:
            fleet.start()
            await fleet.rounds(rounds)
            at = fleet.view.path[rounds - 1].position
            await fleet.until(lambda: fleet.nodes[0].node.machine.at == at, 30, "the fold")

        return story

    long.play(story_of(long, 4))
    short.play(story_of(short, 1))
    target = torch.linspace(-1, 1, 40)

    def left(fleet: Fleet) -> float:
        state = fleet.nodes[0].node.state
        assert state is not None
        return float((state.params - target).norm())

    assert [step.pairs for step in long.view.path[:4]] == [True, True, True, False]
    assert left(long) < 0.5 * left(short), "four rounds of training reached the state, not the last one's"


def test_a_killed_node_goes_on_from_its_own_model() -> None:
    fleet = _fleet(2, every=100)
    before: dict[str, float] = {}

    async def story() -> None:
        fleet.start()
        await fleet.rounds(5)
        fleet.kill("n0")
        step = fleet.view.path[-1]
        own = next(u for u in step.updates if u.claim.node == fleet.id_of("n0"))
        before["way"] = float(fleet.update_of(own.claim, own.place).norm())
        await asyncio.sleep(1)
        fleet.start("n0")
        goal = fleet.view.round + 3
        await fleet.until(
            lambda: any(
                u.claim.node == fleet.id_of("n0")
                for s in fleet.view.path
                for u in s.updates
                if s.round >= goal
            ),
            60,
            "its return",
        )

    fleet.play(story)
    back = next(
        u
        for s in fleet.view.path
        for u in s.updates
        if u.claim.node == fleet.id_of("n0") and u.claim.sequence > 5
    )
    assert float(fleet.update_of(back.claim, back.place).norm()) > 0.7 * before["way"]


def test_a_partner_without_an_update_costs_the_meeting_only() -> None:
    for liar in (Garbler, Withholder):
        fleet = _fleet(4, every=3)
        fleet.lies("n3", liar)

        async def story(fleet: Fleet = fleet) -> None:
            fleet.start()
            await fleet.rounds(7, within_s=200)

        fleet.play(story)
        assert sum(step.pairs for step in fleet.view.path) >= 3
        assert all(m.node.machine.doing for m in fleet.nodes)
