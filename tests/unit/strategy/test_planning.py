import pytest
from runlog.small_log import BATCH, NODES, STEPS, Clerk, small_recipe

from shoal.runlog.entries import Rewind
from shoal.strategy.planning import budget_spent, make_plan

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
    plan = make_plan(small_recipe(), clerk.view, [A.node, C.node], 12.5, "")
    assert plan.round == 2 and plan.step == 2 * STEPS and plan.deadline_ms == 12_500
    assert plan.fragments == (0, 1) and plan.reason == "2 ready nodes, equal work"
    starts = [member.data.start for member in plan.members]
    assert starts == [clerk.view.next_counter, clerk.view.next_counter + STEPS * BATCH]
    clerk.append(plan)
    again = make_plan(small_recipe(), clerk.view, [A.node], 12.5, "again: nobody")
    assert again.members[0].data.start >= starts[-1] + STEPS * BATCH
    assert again.reason == "1 ready node, equal work; again: nobody"
    clerk.append(again)


def test_overlap_plans_spare_samples() -> None:
    strategy = {"preset": "local-sgd", "schedule": {"steps": 4, "overlap": True}, "merge": {"kind": "mix"}}
    plan = make_plan(small_recipe(strategy=strategy), _clerk(0).view, [A.node, B.node], 1, "")
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
