"""Rounds that do not wait for everybody: quorum, arrivals, fragments in turn, and what becomes of late work."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from shoal.base.ids import NodeId
from shoal.data.assignment import Indices, sample_indices
from shoal.node.events import Outgoing
from shoal.node.service import NodeService
from shoal.runlog.entries import Claim, Plan, Seal
from shoal.training.trainer import StepResult
from shoal.worlds.simulated.toy import ToyTrainer

from .harness import COORDINATOR, DEADLINE_S, Fleet, toy_recipe

SPEEDS = (10.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)
"""A step takes between 0.01 and 1 second."""


def _fleet(speeds: tuple[float, ...], strategy: dict[str, Any], **more: Any) -> Fleet:
    fleet = Fleet(nodes=len(speeds), recipe=toy_recipe(strategy=strategy), **more)
    for number, speed in enumerate(speeds):
        fleet.machines[f"n{number}"].speed = speed
    return fleet


def _play_for(fleet: Fleet, seconds: float) -> None:
    async def story() -> None:
        fleet.start()
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            fleet.check()

    fleet.play(story)


def _accepted(fleet: Fleet) -> Counter[NodeId]:
    return Counter(update.claim.node for step in fleet.view.path for update in step.updates)


def _arrivals(**seal: Any) -> dict[str, Any]:
    return {
        "preset": "async",
        "schedule": {"steps": 3, "overlap": 0},
        "seal": {"kind": "arrivals", "min_interval_s": 0.3, "staleness": 1, **seal},
    }


# --- arrivals ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_adaptive_bounds_take_nearly_everything_of_a_fleet_whose_speeds_differ_by_a_hundred() -> None:
    fleet = _fleet(SPEEDS, _arrivals(adaptive=True))
    _play_for(fleet, 60)
    accepted, made = _accepted(fleet), Counter(node for node, _ in fleet.referee.claims)
    assert len(made) == len(SPEEDS)
    assert sum(accepted.values()) >= 0.95 * sum(made.values())
    for node, count in made.items():
        assert accepted[node] >= 0.8 * (count - 1), "the slow ones too; one may be on its way"
    oldest = max(max(u.ages, default=0) for step in fleet.view.path for u in step.updates)
    assert oldest > 3, "a bound for all would have refused these"


@pytest.mark.long
def test_a_bound_that_is_the_same_for_all_shuts_the_slow_ones_out() -> None:
    fleet = _fleet(SPEEDS, _arrivals(adaptive=False, staleness=2))
    _play_for(fleet, 60)
    accepted = _accepted(fleet)
    assert accepted[fleet.id_of("n7")] == 0 < accepted[fleet.id_of("n0")]


def test_fast_nodes_do_not_wait_for_slow_ones() -> None:
    fleet = _fleet((1.0, 1.0, 0.03), _arrivals(adaptive=True))
    _play_for(fleet, 60)
    accepted = _accepted(fleet)
    assert accepted[fleet.id_of("n0")] > 30 and accepted[fleet.id_of("n1")] > 20
    assert accepted[fleet.id_of("n2")] >= 1, "and the slow one is still waited for, by nobody"


def test_a_node_whose_steps_outlast_the_seals_folds_them_all_the_same() -> None:
    """It takes them in between two steps, but does not wait for that before it folds the next."""
    fleet = _fleet((1.0, 1.0, 0.04), _arrivals(adaptive=True))
    behind = []

    async def story() -> None:
        fleet.start()
        await fleet.until(lambda: len(fleet.view.path) > 20, 60, "seals")
        for _ in range(20):
            await asyncio.sleep(1)
            index = fleet.view.index_of(fleet.machines["n2"].node.machine.at)
            behind.append(len(fleet.view.path) - 1 - (index if index is not None else -1))

    fleet.play(story)
    assert len(fleet.view.path) > 40
    assert max(behind) <= 5, behind


def test_an_arrival_moves_the_state_by_its_share_of_the_fleet() -> None:
    """Two that train alone in turn, or together: the mean of all is what a round would have given."""
    fleet = _fleet((1.0, 1.0, 1.0), _arrivals())
    _play_for(fleet, 20)
    whole = [seal.whole for seal in fleet.bodies(Seal) if isinstance(seal, Seal)]
    weights = [sum(update.weight for update in step.updates) for step in fleet.view.path]
    assert len(whole) > 10
    assert all(0 < weight <= fleet_weight for weight, fleet_weight in zip(weights, whole, strict=True))
    assert Counter(whole).most_common(1)[0][0] == 3 * 3 * 2, "three nodes, three steps, two samples"
    assert fleet.view.totals.rounds == pytest.approx(sum(_accepted(fleet).values()) / 3, rel=0.15)


def test_the_schedule_goes_by_what_a_typical_member_has_trained() -> None:
    fleet = _fleet((1.0, 1.0, 1.0, 1.0), _arrivals())
    _play_for(fleet, 30)
    plans = [plan for plan in fleet.bodies(Plan) if isinstance(plan, Plan)]
    assert [plan.step for plan in plans] == sorted(plan.step for plan in plans)
    trained = sum(update.claim.steps for step in fleet.view.path for update in step.updates)
    assert plans[-1].step == pytest.approx(trained / 4, rel=0.15)


def test_only_every_kth_seal_is_attested_and_the_end_is_saved_all_the_same() -> None:
    strategy = _arrivals(attest_every=4)
    fleet = Fleet(nodes=3, recipe=toy_recipe(strategy=strategy, budget={"tokens": 200}))

    async def story() -> None:
        fleet.start()
        tasks = [machine.task for machine in fleet.nodes]
        await fleet.until(lambda: all(task is not None and task.done() for task in tasks), 120, "the end")

    fleet.play(story)
    attested = set(fleet.view.attested)
    counts = [number for number, step in enumerate(fleet.view.path, 1) if step.position in attested]
    assert len(counts) > 2 and all(number % 4 == 0 for number in counts[:-1])
    assert fleet.view.best_start().at == fleet.view.at


# --- quorum ------------------------------------------------------------------------------------------------


def _quorum(**changes: Any) -> dict[str, Any]:
    return {
        "preset": "decoupled",
        "schedule": {"steps": 3, "overlap": 0},
        "codec": {"kind": "none"},
        "seal": {"kind": "quorum", "quorum": 2.0, "grace_s": 0.1, "deadline_s": DEADLINE_S, "staleness": 2},
        **changes,
    }


def test_a_quorum_does_not_wait_and_late_updates_count_with_their_age() -> None:
    fleet = _fleet((1.0, 1.0, 0.4), _quorum())
    _play_for(fleet, 30)
    slow = fleet.id_of("n2")
    updates = [update for step in fleet.view.path for update in step.updates]
    ages = [max(update.ages, default=0) for update in updates if update.claim.node == slow]
    assert len(ages) >= 5 and set(ages) <= {0, 1, 2} and max(ages) >= 1
    late = next(update for update in updates if update.claim.node == slow and update.ages)
    assert late.weight == int(6 * 6 / 3 / (1 + max(late.ages)) ** 0.5), "and with less weight"


def test_new_versions_are_merged_while_work_goes_on() -> None:
    seal = {"kind": "quorum", "quorum": 2.0, "grace_s": 0.1, "deadline_s": DEADLINE_S, "staleness": 5}
    fleet = _fleet((1.0, 1.0, 0.15), _quorum(seal=seal))
    _play_for(fleet, 30)
    slow = [u.claim for s in fleet.view.path for u in s.updates if u.claim.node == fleet.id_of("n2")]
    merges = [taken for claim in slow for taken in claim.merges]
    assert len(merges) >= 5 and all(0 < taken.step <= 3 for taken in merges)
    seals = {step.position for step in fleet.view.path}
    assert {taken.position for taken in merges} <= seals


# --- fragments in turn -------------------------------------------------------------------------------------


def test_fragments_take_turns_and_progress_in_the_others_survives() -> None:
    strategy = {
        "preset": "streaming-diloco",
        "schedule": {"steps": 2, "fragments": 3, "order": "rotate", "overlap": 0},
        "codec": {"kind": "none"},
        "outer": {"kind": "sgd", "lr": 1.0},
        "merge": {"kind": "replace"},
        "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
    }
    fleet = _fleet((1.0, 1.0), strategy, trainer=Tally)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(9)

    fleet.play(story)
    order = [step.fragments for step in fleet.view.path]
    assert order[:3] == order[3:6] and {f for (f,) in order[:3]} == {0, 1, 2}
    for number, step in enumerate(fleet.view.path):
        for update in step.updates:
            rounds = min(number + 1, 3)
            values = fleet.update_of(update.claim)
            assert values.tolist() == pytest.approx([4.0 * rounds] * len(values)), "all since its last turn"
            assert update.claim.samples == 4, "each sample is counted once"
    at, hashes = zip(*fleet.states().values(), strict=True)
    assert len(set(at)) > 1 or len(set(hashes)) == 1


class Tally(ToyTrainer):
    """Every sample moves every parameter by one, so that an update is the number of samples in it."""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self.params().sub_(len(indices))
        return StepResult(loss=0.0, samples=len(indices), tokens=len(indices))


# --- nothing is lost, only late ----------------------------------------------------------------------------

SIZE = 40


def _mark(indices: Indices) -> torch.Tensor:
    """What these samples move the parameters by."""
    grid = torch.arange(SIZE, dtype=torch.float64)
    return sum(torch.sin(grid + float(index)) for index in indices.tolist())  # type: ignore[return-value]


class Marks(ToyTrainer):
    """Each sample leaves its own mark, wherever the parameters are: what an update holds can be told from its data."""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self.params().sub_(_mark(indices).float())
        return StepResult(loss=0.0, samples=len(indices), tokens=len(indices))


MADE: dict[int, Claim] = {}
"""Every durable claim of the node that is looked at, by its sequence."""


class Recorder(NodeService):
    """An honest node that writes down its claims as they become durable."""

    async def _wake_up(self) -> None:
        await super()._wake_up()
        if self._kept is not None:
            MADE[self._kept.sequence] = self._kept

    async def _make_claim(self, *work: Any) -> Outgoing:
        outgoing = await super()._make_claim(*work)
        MADE[outgoing.claim.sequence] = outgoing.claim
        return outgoing


def _books(fleet: Fleet) -> tuple[torch.Tensor, torch.Tensor]:
    """What n0 has trained into its updates, and where that is now: in the run, in its residual, or on its way."""
    recipe, learner = fleet.recipe, fleet.machines["n0"].node.learner
    assert learner is not None
    produced = torch.zeros(SIZE, dtype=torch.float64)
    for claim in MADE.values():
        for part in claim.data:
            produced += _mark(sample_indices(recipe.seed, part.start, part.count, 4096))
    local = msgspec.msgpack.decode(learner.local_state())
    there = torch.frombuffer(bytearray(local["residual"]), dtype=torch.float32).double()
    waiting = {sent["sequence"] for sent in local["unsettled"]}
    accepted = set(fleet.view.members[fleet.id_of("n0")].accepted) | {
        update.claim.sequence
        for step in fleet.view.path
        for update in step.updates
        if update.claim.node == fleet.id_of("n0")
    }
    for sequence in sorted(accepted | waiting):
        there = there + fleet.update_of(MADE[sequence]).double()
    return produced, there


@pytest.mark.parametrize("merge", ["replace", "mix", "add-delta"])
@pytest.mark.parametrize("codec", ["int8", "chunked-top-k"])
def test_what_was_trained_is_in_the_run_or_in_the_residual(merge: str, codec: str) -> None:
    """n0 is cut off again and again, so that its claims come too late, and it is killed, and so is the coordinator:
    whatever n0 has made an update of is in the end accepted, on its way, or in its residual, once."""
    strategy = _quorum(
        codec={"kind": codec, "error_feedback": True, **({"chunk": 16} if codec != "int8" else {})},
        merge={"kind": merge},
        seal={"kind": "quorum", "quorum": 2.0, "grace_s": 0.0, "deadline_s": DEADLINE_S, "staleness": 1},
    )
    fleet = _fleet((0.42, 1.0, 1.0), strategy, trainer=Marks, size=SIZE)
    fleet.lies("n0", Recorder)
    fleet.referee.liars.clear()
    MADE.clear()

    async def story() -> None:
        fleet.start()
        for number in range(8):
            await asyncio.sleep(2.6 + 0.17 * number)
            fleet.network.faults.cut.update({(COORDINATOR, "n0"), ("n0", COORDINATOR)})
            await asyncio.sleep(3)
            victim = COORDINATOR if number == 3 else "n0"
            if number % 2:
                fleet.kill(victim)
            fleet.network.faults.cut.clear()
            await asyncio.sleep(0.5)
            if number % 2:
                fleet.start(victim)
        await asyncio.sleep(10)
        fleet.check()

    fleet.play(story)
    sealed = _accepted(fleet)[fleet.id_of("n0")]
    assert sealed >= 5 and len(MADE) >= sealed + 4, "some came to nothing"
    produced, there = _books(fleet)
    assert torch.allclose(produced, there, atol=2e-3), float((produced - there).abs().max())
    assert float(produced.abs().max()) > 1
