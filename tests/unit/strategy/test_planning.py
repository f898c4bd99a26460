import itertools
from typing import Any

import msgspec
import pytest
from runlog.small_log import BATCH, NODES, STEPS, Clerk, accepted, small_recipe

from shoal.runlog.entries import Rewind
from shoal.strategy.planning import Measured, budget_spent, local_steps, make_plan, turn_of, worthwhile_steps

A, B, C = NODES[:3]


def _clerk(rounds: int) -> Clerk:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    for _ in range(rounds):
        clerk.plan(A, B)
        clerk.seal(A, B)
    return clerk


def test_equal_work_on_samples_nobody_has() -> None:
    clerk = _clerk(2)
    plan = make_plan(small_recipe(), clerk.view, [A.node, C.node], "")
    assert plan.round == 2 and plan.step == 2 * STEPS and plan.deadline_ms == 10_000
    assert plan.fragments == (0, 1) and plan.reason == "2 ready nodes, equal work"
    starts = [member.data.start for member in plan.members]
    assert starts == [clerk.view.next_counter, clerk.view.next_counter + STEPS * BATCH]
    clerk.append(plan)
    again = make_plan(small_recipe(), clerk.view, [A.node], "again: nobody")
    assert again.members[0].data.start >= starts[-1] + STEPS * BATCH
    assert again.reason == "1 ready node, equal work; again: nobody"
    clerk.append(again)


def test_overlap_plans_spare_samples() -> None:
    strategy = {"preset": "local-sgd", "schedule": {"steps": 4, "overlap": True}, "merge": {"kind": "mix"}}
    plan = make_plan(small_recipe(strategy=strategy), _clerk(0).view, [A.node, B.node], "")
    first, second = plan.members
    assert (first.steps, first.spare, first.data.count) == (4, 4, 8 * BATCH)
    assert second.data.start == first.data.start + first.data.count


@pytest.mark.parametrize(
    ("budget", "rounds", "wall_ms", "spent"),
    [
        ({"rounds": 2}, 1, 0, None),
        ({"rounds": 2}, 2, 0, "2 rounds done"),
        ({"tokens": 13}, 1, 0, None),
        ({"tokens": 12}, 1, 0, "12 tokens done"),
        ({"rounds": 9, "tokens": 12}, 1, 0, "12 tokens done"),
        ({"seconds": 5}, 1, 1000 + 4 + 4999, None),
        ({"seconds": 5}, 1, 1000 + 4 + 5000, "5 seconds done"),
        ({"seconds": 5}, 0, 10**9, None),
    ],
)
def test_budgets(budget: dict[str, float], rounds: int, wall_ms: int, spent: str | None) -> None:
    view = _clerk(rounds).view
    assert budget_spent(small_recipe(budget=budget), view, wall_ms) == spent


def test_rounds_that_were_undone_do_not_count() -> None:
    clerk = _clerk(3)
    clerk.append(Rewind(to=clerk.view.path[0].position, reason="asked"))
    assert budget_spent(small_recipe(budget={"rounds": 3}), clerk.view, 0) is None
    assert budget_spent(small_recipe(budget={"tokens": 13}), clerk.view, 0) is None


def _recipe(schedule: dict[str, Any], **pieces: Any) -> Any:
    strategy = {"preset": "local-sgd", "schedule": schedule, "merge": {"kind": "add-delta"}, **pieces}
    return small_recipe(strategy=strategy, budget={"rounds": 10})


def test_overlap_is_a_number_of_steps() -> None:
    plan = make_plan(_recipe({"steps": 4, "overlap": 3}), _clerk(0).view, [A.node], "")
    assert (plan.members[0].steps, plan.members[0].spare, plan.members[0].data.count) == (4, 3, 7 * BATCH)


@pytest.mark.parametrize("count", range(1, 40))
def test_fragments_take_turns(count: int) -> None:
    turns = [turn_of(number, count) for number in range(3 * count)]
    assert sorted(turns[:count]) == list(range(count)) and turns[:count] == turns[count : 2 * count]
    if count > 4:
        gaps = [abs(one - two) for one, two in itertools.pairwise(turns)]
        assert min(gaps) > 1, "neighbours are not synced one right after the other"


def test_rotate_plans_one_fragment_a_round() -> None:
    clerk = _clerk(0)
    recipe = _recipe({"steps": 3, "fragments": 2, "order": "rotate"})
    seen = []
    for _ in range(4):
        plan = make_plan(recipe, clerk.view, [A.node], "")
        clerk.append(plan)
        clerk.append(clerk.seal_body(A, fragments=plan.fragments))
        seen.append(plan.fragments)
    assert seen == [(0,), (1,), (0,), (1,)] and clerk.view.versions == [2, 2]


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        ({"steps": 4, "steps_last": 64}, [4, 5, 7, 9, 12, 16, 21, 28, 37, 49, 64]),
        ({"steps": 4, "steps_last": 24, "growth": "linear"}, [4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]),
        ({"steps": 8, "steps_last": 2, "growth": "linear"}, [8, 7, 7, 6, 6, 5, 4, 4, 3, 3, 2]),
        ({"steps": 7, "warmup_rounds": 3}, [1, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7]),
        ({"steps": 7}, [7] * 11),
    ],
    ids=["geometric", "linear", "shrinking", "warm-up", "fixed"],
)
def test_steps_over_the_budget(schedule: dict[str, Any], steps: list[int]) -> None:
    clerk, found = _clerk(0), []
    for _ in steps:
        found.append(local_steps(_recipe(schedule), clerk.view))
        clerk.plan(A)
        clerk.seal(A)
    assert found == pytest.approx(steps, abs=1)
    assert found[0] == steps[0] and found[-1] == steps[-1]


def test_the_schedule_stands_where_the_path_is_also_after_a_rewind() -> None:
    clerk = _clerk(0)
    recipe = _recipe({"steps": 2, "steps_last": 12, "growth": "linear"})
    stood, given = [], []
    for number in range(4):
        plan = make_plan(recipe, clerk.view, [A.node], "")
        stood.append(plan.step)
        given.append(plan.members[0].steps)
        clerk.append(plan)
        data, count = plan.members[0].data, plan.members[0].data.count
        claim = {"data": (data,), "samples": count, "tokens": count, "steps": plan.members[0].steps}
        item = msgspec.structs.replace(accepted(clerk.view, A, **claim), weight=count)
        clerk.append(clerk.seal_body(accepted=(item,)))
        if number == 2:
            clerk.append(Rewind(to=clerk.view.path[0].position, reason="asked"))
    assert stood == [0, 2, 5, 2] and given == [2, 3, 4, 3]


def test_a_window_of_time_is_in_the_plan() -> None:
    plan = make_plan(_recipe({"steps": 100, "seconds": 2.5}), _clerk(0).view, [A.node], "")
    assert plan.members[0].window_ms == 2500 and plan.members[0].steps == 100


def test_the_rule_says_how_late_and_the_weights_by_what() -> None:
    clerk = _clerk(2)
    seal = {"kind": "arrivals", "min_interval_s": 0.001, "staleness": 3}
    recipe = _recipe({"steps": 3}, seal=seal, weights={"kind": "tokens-squared-per-step"})
    plan = make_plan(recipe, clerk.view, [A.node, C.node], "")
    known, new = plan.members
    assert known.staleness == 3 and new.staleness == 1000 and plan.weights == "tokens-squared-per-step"
    clerk.append(plan)


@pytest.mark.parametrize(
    ("step_s", "idle_s", "steps"),
    [
        (1.0, 1.0, 4),  # a fifth of a round is not training: within the share
        (1.0, 4.0, 12),  # 4 s beside 12 s of training are a quarter
        (0.0, 4.0, 4),  # nobody has said how long a step takes
        (0.01, 4.0, 64),  # a link that would need 1,200 steps gets as many as a round may have
    ],
)
def test_a_slow_link_makes_rounds_longer(step_s: float, idle_s: float, steps: int) -> None:
    recipe = small_recipe(
        strategy={"preset": "local-sgd", "schedule": {"steps": 4, "hide": 0.25}}, budget={"tokens": 10**6}
    )
    measured = Measured(step_s=step_s, idle_s=idle_s)
    plan = make_plan(recipe, _clerk(0).view, [A.node], "", measured)
    assert plan.members[0].steps == steps and plan.members[0].data.count == steps * BATCH
    assert ("steps instead of 4" in plan.reason) == (steps > 4)


def test_a_budget_of_rounds_fixes_their_steps() -> None:
    recipe = small_recipe(strategy={"preset": "local-sgd", "schedule": {"steps": 4, "hide": 0.25}})
    assert worthwhile_steps(recipe, 4, Measured(step_s=1.0, idle_s=100.0)) == (4, "")
