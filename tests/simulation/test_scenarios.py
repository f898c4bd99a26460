"""Scripted scenarios: the same services as everywhere, in a world where the story decides what goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.coordinator.events import RewindAsked, StopAsked
from shoal.data.assignment import Indices
from shoal.replica.blobs import BlobStore
from shoal.replica.state import decode_state, state_hash
from shoal.runlog.chain import Equivocation, make_link
from shoal.runlog.entries import Claim, Rewind, Stopped
from shoal.runlog.view import verify_log
from shoal.training.trainer import StepResult
from shoal.wire.messages import Entries, Offer, decode, encode
from shoal.wire.signed import parse, sign
from shoal.worlds.simulated.toy import ToyTrainer

from .harness import COORDINATOR, DEADLINE_S, RUN, Fleet, toy_recipe


def _all_equal(fleet: Fleet) -> bool:
    states = fleet.states()
    return len(states) > 0 and len({state for at, state in states.values() if at == fleet.view.at}) <= 1


def test_a_quiet_run_agrees() -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(6)
        await fleet.until(
            lambda: len({at for at, _ in fleet.states().values()}) == 1, 20, "standing together"
        )
        assert len(set(fleet.states().values())) == 1

    fleet.play(story)
    assert all(fleet.contributors(step.position) == {"n0", "n1", "n2"} for step in fleet.view.path[1:])


def test_a_late_joiner_takes_part() -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start(COORDINATOR, "n0", "n1")
        await fleet.rounds(5)
        fleet.start("n2")
        took = await fleet.until(
            lambda: "n2" in fleet.contributors(fleet.view.at) if fleet.view.path else False, 30, "taking part"
        )
        assert took < 2 * DEADLINE_S
        await fleet.rounds(2)

    fleet.play(story)
    assert _all_equal(fleet)


def test_a_node_leaves_and_returns() -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        machine = fleet.machines["n2"]
        assert machine.host is not None and machine.task is not None
        fleet.loop.spawn(machine.host.owner, machine.node.leave("night"), "leave")
        await fleet.until(machine.task.done, 5, "leaving")
        assert machine.task.result() == "night"
        machine.host.alive = False
        fleet.network.drop_host(machine.host)
        left = await fleet.rounds(2)
        assert left < DEADLINE_S, "nobody waits for one who said goodbye"
        assert not fleet.view.members[fleet.id_of("n2")].present
        assert "n2" not in fleet.contributors(fleet.view.at)
        fleet.start("n2")
        await fleet.until(lambda: "n2" in fleet.contributors(fleet.view.at), 30, "taking part again")
        await fleet.rounds(1)

    fleet.play(story)
    assert _all_equal(fleet) and fleet.view.members[fleet.id_of("n2")].present


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_of_four_dies_and_the_next_round_seals_within_one_deadline(seed: int) -> None:
    fleet = Fleet(seed=seed, nodes=4)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        await asyncio.sleep(0.1 * seed)
        fleet.kill("n3")
        assert await fleet.rounds(1) <= DEADLINE_S
        assert await fleet.rounds(1) <= DEADLINE_S
        assert fleet.contributors(fleet.view.at) == {"n0", "n1", "n2"}

    fleet.play(story)
    assert _all_equal(fleet)


def test_one_of_four_is_stopped_and_costs_one_lease_and_one_deadline() -> None:
    """kill -STOP of a node that holds others' updates: once its lease is over, it costs nobody anything."""
    fleet = Fleet(nodes=4)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        usual = max([await fleet.rounds(1) for _ in range(3)])
        fleet.stop("n3")
        lease_s = fleet.recipe.membership.lease_s
        assert await fleet.rounds(4) <= lease_s + DEADLINE_S + 4 * usual
        for _ in range(3):
            assert await fleet.rounds(1) <= 2 * usual
            assert fleet.contributors(fleet.view.at) == {"n0", "n1", "n2"}
        fleet.go_on("n3")
        await fleet.until(lambda: "n3" in fleet.contributors(fleet.view.at), 30, "taking part again")

    fleet.play(story)


def test_a_node_alone_makes_progress_with_overlap() -> None:
    """There is nobody whose update could travel meanwhile: its spare steps must not run into the next round's."""
    strategy = {
        "preset": "diloco",
        "schedule": {"steps": 3, "overlap": True},
        "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
        "merge": {"kind": "mix", "alpha": 0.5},
    }
    membership = {"min_nodes": 1, "lease_s": 4.0, "heartbeat_s": 1.0}
    fleet = Fleet(nodes=1, recipe=toy_recipe(strategy=strategy, membership=membership))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(8, 40)

    fleet.play(story)
    assert _all_equal(fleet)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.55, 1.0])
def test_the_coordinator_dies_and_returns_with_nothing_acknowledged_lost(after_s: float) -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        await asyncio.sleep(after_s)
        entries, acknowledged = list(fleet.referee.entries), set(fleet.referee.acknowledged)
        fleet.kill(COORDINATOR)
        await asyncio.sleep(3)
        fleet.start(COORDINATOR)
        await fleet.rounds(3)
        assert fleet.referee.entries[: len(entries)] == entries
        assert acknowledged <= set(fleet.referee.settled), "each is in exactly one seal"

    fleet.play(story)
    terms = [verify_log(fleet.referee.entries[:length])[0].term for length in (1, len(fleet.referee.entries))]
    assert terms[1] >= terms[0] + 2 and _all_equal(fleet)


def test_nodes_go_on_training_while_the_coordinator_is_away() -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        await asyncio.sleep(0.2)
        fleet.kill(COORDINATOR)
        await asyncio.sleep(5)
        assert {m.node.machine.doing for m in fleet.nodes} <= {
            "waiting for the seal",
            "waiting for the next round",
        }
        fleet.start(COORDINATOR)
        assert await fleet.rounds(1) < DEADLINE_S

    fleet.play(story)


def test_a_rewind_gives_the_states_there_were_before() -> None:
    fleet = Fleet(nodes=3)
    seen: dict[str, Any] = {}

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)
        target = fleet.view.path[-1].position
        await fleet.until(
            lambda: any(position == target for position, _ in fleet.referee.states), 10, "attesting it"
        )
        before = next(state for (position, _), state in fleet.referee.states.items() if position == target)
        await fleet.rounds(1)
        rewound: list[tuple[int, str]] = []
        await fleet.coordinator.post(RUN, RewindAsked(target, "asked by the operator"))
        await fleet.until(lambda: bool(fleet.bodies(Rewind)), 5, "the rewind")
        for machine in fleet.nodes:

            def stands_there(machine: Any = machine) -> bool:
                state = machine.node.state
                here = machine.node.machine.at == target and state is not None
                if here:
                    rewound.append((target, state_hash(state)))
                return here

            await fleet.until(stands_there, 20, f"{machine.name} going back")
        assert {state for _, state in rewound} == {before}
        seen["target"] = target
        await fleet.rounds(2)

    fleet.play(story)
    assert fleet.view.stands(seen["target"]) and _all_equal(fleet)


class Tally(ToyTrainer):
    """Every sample moves every parameter by one, so that an update is the number of samples in it."""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self.params().sub_(len(indices))
        return StepResult(loss=0.0, samples=len(indices), tokens=len(indices))


@pytest.mark.parametrize("overlap", [False, True], ids=["replace", "overlap"])
def test_after_a_rewind_claims_name_just_the_work_in_their_updates(overlap: bool) -> None:
    """n0 hears of a seal and of the rewind that undoes it in one breath: the state it has is the right one, but what
    it had trained since is not to be counted again."""
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": 3, "overlap": overlap},
        "codec": {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
        "merge": {"kind": "mix", "alpha": 1.0} if overlap else {"kind": "replace"},
    }
    fleet = Fleet(nodes=3, recipe=toy_recipe(strategy=strategy), trainer=Tally)
    fleet.machines["n1"].speed = 0.5
    seen: dict[tuple[NodeId, int], Claim] = {}

    def look() -> None:
        seen.update({(u.claim.node, u.claim.sequence): u.claim for s in fleet.view.path for u in s.updates})

    def took_part() -> bool:
        return "n0" in fleet.contributors(fleet.view.at)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)
        n0 = fleet.id_of("n0")
        made = {claim for claim in fleet.referee.acknowledged if claim[0] == n0}
        target = fleet.view.at
        await fleet.until(lambda: any(c[0] == n0 and c not in made for c in fleet.referee.acknowledged), 20)
        assert fleet.machines["n0"].node.machine.at == target
        fleet.network.faults.cut.add((COORDINATOR, "n0"))
        await fleet.rounds(1)
        look()
        await fleet.coordinator.post(RUN, RewindAsked(target, "asked by the operator"))
        await fleet.until(lambda: bool(fleet.bodies(Rewind)), 5, "the rewind")
        fleet.network.faults.cut.clear()
        for _ in range(3):
            await fleet.rounds(1)
            await fleet.until(took_part, 20, "n0 taking part again")
            look()

    fleet.play(story)
    assert len([node for node, _ in seen if node == fleet.id_of("n0")]) >= 6
    for claim in seen.values():
        assert fleet.update_of(claim).tolist() == pytest.approx([claim.samples] * 40)


@pytest.mark.parametrize("budget", [{"rounds": 5}, {"tokens": 70}, {"seconds": 6}])
def test_a_run_to_its_budget_ends_everywhere_with_its_final_state_saved(budget: dict[str, float]) -> None:
    fleet = Fleet(nodes=3, recipe=toy_recipe(budget=budget))

    async def story() -> None:
        fleet.start()
        tasks = [machine.task for machine in fleet.nodes]
        await fleet.until(lambda: all(task is not None and task.done() for task in tasks), 120, "the end")
        results = {task.result() for task in tasks if task is not None}
        assert results == {fleet.view.stopped}

    fleet.play(story)
    view = fleet.view
    assert view.stopped is not None and next(iter(budget)) in view.stopped
    saved = view.best_start()
    assert saved.at == view.at and fleet.coordinator.runs[RUN].machine.finished
    disk = SubDisk(fleet.machines[COORDINATOR].disk, f"runs/{RUN}")
    assert view.genesis is not None
    state = decode_state(BlobStore(disk, lambda _: None).get(saved.blob), view.genesis.layout)
    assert state_hash(state) == saved.state
    assert {h for at, h in fleet.states().values() if at == view.at} == {saved.state}


def test_a_stop_that_was_asked_for_ends_everywhere() -> None:
    fleet = Fleet(nodes=2)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)
        await asyncio.sleep(0.3)
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        tasks = [machine.task for machine in fleet.nodes]
        await fleet.until(lambda: all(task is not None and task.done() for task in tasks), 60, "the end")
        assert {task.result() for task in tasks if task is not None} == {"enough"}

    fleet.play(story)
    assert fleet.view.best_start().at == fleet.view.at


def test_a_stop_settles_the_claims_that_were_kept() -> None:
    """n1 is slow: the others' claims wait for its own when the operator stops the run."""
    fleet = Fleet(nodes=3)
    fleet.machines["n1"].speed = 0.2

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        await fleet.until(lambda: len(fleet.referee.unsettled()) == 2, 20, "two claims waiting")
        waiting = fleet.referee.unsettled()
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        tasks = [machine.task for machine in fleet.nodes]
        await fleet.until(lambda: all(task is not None and task.done() for task in tasks), 60, "the end")
        assert waiting <= set(fleet.referee.settled)

    fleet.play(story)
    assert not fleet.referee.unsettled() and fleet.view.best_start().at == fleet.view.at


def test_one_that_was_away_at_the_end_still_ends() -> None:
    fleet = Fleet(nodes=3, recipe=toy_recipe(budget={"rounds": 4}))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        fleet.kill("n2")
        await fleet.until(lambda: fleet.view.stopped is not None, 60, "the end")
        await asyncio.sleep(5)
        fleet.start("n2")
        task = fleet.machines["n2"].task
        assert task is not None
        await fleet.until(task.done, 60, "its end")
        assert task.result() == "4 rounds done"

    fleet.play(story)


# --- misbehaviour ------------------------------------------------------------------------------------------


def _other_entry(fleet: Fleet, position: int) -> bytes:
    """What an equivocating coordinator signs for a position where it has signed something else."""
    view, finding = verify_log(fleet.referee.entries[:position])
    assert finding is None
    identity = fleet.machines[COORDINATOR].identity
    body = Stopped(reason="you are the only one I tell")
    return make_link(identity, RUN, view.head, view.term + 1, 0, body).encoded


def _caught(fleet: Fleet, name: str) -> None:
    machine = fleet.machines[name]
    assert machine.task is not None
    error = machine.task.exception()
    assert isinstance(error, ShoalError) and error.code == "SH-LOG-02"
    files = machine.disk.list(f"runs/{RUN}")
    proof = next(file for file in files if file.startswith("proof-"))
    kept = msgspec.msgpack.decode(machine.disk.read(f"runs/{RUN}/{proof}"), type=tuple[bytes, bytes])
    assert Equivocation(*kept).holds(fleet.machines[COORDINATOR].identity.public)


def test_a_node_that_is_shown_two_entries_stops_with_the_proof() -> None:
    fleet = Fleet(nodes=2)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        position = fleet.view.at
        connection = fleet.coordinator.runs[RUN].connections[fleet.id_of("n0")]
        await connection.channel.send(encode(Entries(items=(_other_entry(fleet, position),))))
        task = fleet.machines["n0"].task
        assert task is not None
        began = fleet.loop.time()
        while not task.done():
            assert fleet.loop.time() - began < 10
            await asyncio.sleep(0.1)

    fleet.play(story)
    _caught(fleet, "n0")


def test_two_nodes_that_are_shown_different_logs_find_out() -> None:
    """n1 alone is shown another entry at the log's end; its peers' copies, or the next entry, give it away."""
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        await asyncio.sleep(0.1)
        position = fleet.machines["n1"].node.machine.view.length
        assert position == len(fleet.referee.entries)
        view, _ = verify_log(fleet.referee.entries)
        identity = fleet.machines[COORDINATOR].identity
        body = Rewind(to=0 if view.may_rewind(0) else view.kept_states()[0].at, reason="only for you")
        other = make_link(identity, RUN, view.head, view.term, 0, body).encoded
        connection = fleet.coordinator.runs[RUN].connections[fleet.id_of("n1")]
        await connection.channel.send(encode(Entries(items=(other,))))
        task = fleet.machines["n1"].task
        assert task is not None
        began = fleet.loop.time()
        while not task.done():
            assert fleet.loop.time() - began < 60, fleet.situation()
            await asyncio.sleep(0.1)

    fleet.play(story)
    _caught(fleet, "n1")


def test_noise_on_the_control_channel_costs_its_sender_only() -> None:
    fleet = Fleet(nodes=3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        channel = fleet.machines["n2"].node._link._channel
        assert channel is not None
        fleet.network.tap = lambda sender, receiver, frame: None
        await channel.send(b"\xc1 noise")
        await fleet.rounds(2)
        assert "n0" in fleet.contributors(fleet.view.at)

    fleet.play(story)


def test_a_replayed_claim_is_counted_once() -> None:
    """Every offer is sent again, twice, a while later, by the network."""
    fleet = Fleet(nodes=3)
    offers: list[tuple[str, bytes]] = []
    watch = fleet.referee.frame

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        watch(sender, receiver, frame)
        if isinstance(decode(frame), Offer):
            offers.append((sender, frame))

    fleet.network.tap = tap

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        for sender, frame in list(offers):
            channel = fleet.machines[sender].node._link._channel
            assert channel is not None
            await channel.send(frame)
            await channel.send(frame)
        await fleet.rounds(2)

    fleet.play(story)
    counted = [(u.claim.node, u.claim.sequence) for step in fleet.view.path for u in step.updates]
    assert len(counted) == len(set(counted)) and len(offers) >= 6


def test_claims_are_signed_by_their_nodes() -> None:
    """What the referee counted is what everyone can check from the log alone."""
    fleet = Fleet(nodes=2)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)

    fleet.play(story)
    view, finding = verify_log(fleet.referee.entries, RUN)
    assert finding is None and view.head == fleet.view.head
    claim = fleet.view.path[0].updates[0].claim
    assert parse(sign(fleet.machines["n0"].identity, claim).payload, Claim) == claim
