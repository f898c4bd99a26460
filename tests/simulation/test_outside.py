"""Algorithms whose outer optimiser takes the real step, by the real services: warm-up, crashes, joiners, a rewind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.coordinator.events import RewindAsked
from shoal.replica.fold import RESIDUAL
from shoal.runlog.entries import Plan

from .harness import COORDINATOR, DEADLINE_S, RUN, Fleet, toy_recipe

WARM_UP = 4
SEAL = {"kind": "all-or-deadline", "deadline_s": DEADLINE_S}
PRESETS: dict[str, dict[str, Any]] = {
    "ddp-adam": {"outer": {"lr": 0.05, "warmup_rounds": 3}},
    "onebit-adam": {
        "codec": {"warmup_rounds": WARM_UP},
        "outer": {"lr": 0.05, "freeze_after": WARM_UP, "warmup_rounds": 3},
    },
    "demo": {"outer": {"lr": 0.05, "warmup_rounds": 3}, "codec": {"chunk": 8, "density": 0.25}},
}


def _fleet(preset: str, nodes: int = 3, rounds: int = 60) -> Fleet:
    schedule = {"steps": 1, "fragments": 2}
    strategy = {"preset": preset, "schedule": schedule, "seal": SEAL, **PRESETS[preset]}
    return Fleet(nodes=nodes, recipe=toy_recipe(strategy=strategy, budget={"rounds": rounds}))


def _agrees(fleet: Fleet) -> bool:
    states = [state for at, state in fleet.states().values() if at == fleet.view.at]
    return len(states) >= 2 and len(set(states)) == 1


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_fleet_agrees_through_crashes_and_with_a_late_joiner(preset: str) -> None:
    fleet = _fleet(preset, nodes=4)

    async def story() -> None:
        fleet.start(COORDINATOR, "n0", "n1", "n2")
        await fleet.rounds(WARM_UP - 1)
        fleet.kill("n1")
        await fleet.rounds(2)
        fleet.start("n1")
        await fleet.rounds(3)
        fleet.kill(COORDINATOR)
        fleet.start(COORDINATOR)
        await fleet.rounds(2)
        fleet.start("n3")
        await fleet.until(lambda: "n3" in fleet.contributors(fleet.view.at), 30, "taking part")
        await fleet.rounds(2)
        await fleet.until(lambda: _agrees(fleet), 20, "agreeing")

    fleet.play(story)
    rates = [step.rate for step in fleet.view.path]
    assert rates[:3] == [pytest.approx(number / 3) for number in (1, 2, 3)]
    assert rates[3:] == sorted(rates[3:], reverse=True) and rates[3] > rates[-1] > 0
    planned = {(plan.round, plan.rate) for plan in fleet.bodies(Plan) if isinstance(plan, Plan)}
    assert len(planned) == len({number for number, _ in planned}), (
        "a round that is planned again keeps its rate"
    )


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_they_find_what_is_to_be_found(preset: str) -> None:
    """The toy's data pulls towards a point; steps that end near nothing end near it."""
    fleet = _fleet(preset)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(58, within_s=300)
        await fleet.until(lambda: _agrees(fleet), 20, "agreeing")

    fleet.play(story)
    state, learner = fleet.machines["n0"].node.state, fleet.machines["n0"].node.learner
    assert state is not None and learner is not None
    assert learner.evaluate(state.params) < 0.06 < learner.evaluate(torch.zeros(40))


def test_one_bit_adam_sends_few_bytes_once_it_is_warm_and_a_digest_remembers() -> None:
    fleet = _fleet("onebit-adam")

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2 * WARM_UP)
        await fleet.until(lambda: _agrees(fleet), 20, "agreeing")

    fleet.play(story)
    sizes = [{update.claim.size_bytes for update in step.updates} for step in fleet.view.path]
    warm, cold = sizes[WARM_UP:], sizes[:WARM_UP]
    assert max(map(max, warm)) < min(map(min, cold)) / 2
    state = fleet.machines["n0"].node.state
    assert state is not None and bool(state.slots[RESIDUAL].any())


def test_after_a_rewind_into_the_warm_up_it_is_warm_up_again() -> None:
    fleet = _fleet("onebit-adam")

    async def story() -> None:
        fleet.start()
        await fleet.rounds(WARM_UP + 2)
        start = fleet.view.kept_states()[0].at
        await fleet.coordinator.post(RUN, RewindAsked(start, "asked by the operator"))
        await fleet.rounds(WARM_UP)
        await fleet.until(lambda: _agrees(fleet), 20, "agreeing")

    fleet.play(story)
    assert [step.place for step in fleet.view.path] == list(range(len(fleet.view.path)))
    for step in fleet.view.path:
        small = max(update.claim.size_bytes for update in step.updates) < 150
        assert small == (step.place >= WARM_UP), (step.place, step.updates[0].claim.size_bytes)
