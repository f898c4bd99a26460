import pytest

from shoal.training.schedule import rate_factor
from shoal.training.spec import AdamWSpec


def test_warmup_rises_to_one() -> None:
    inner = AdamWSpec(warmup_steps=4)
    assert [rate_factor(inner, step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decay_goes_from_one_to_the_floor_and_stays(schedule: str) -> None:
    inner = AdamWSpec.model_validate(
        {"schedule": schedule, "total_steps": 110, "warmup_steps": 10, "floor": 0.2}
    )
    factors = [rate_factor(inner, step) for step in range(10, 111)]
    assert factors[0] == 1.0 and factors[50] == pytest.approx(0.6) and factors[100] == pytest.approx(0.2)
    assert factors == sorted(factors, reverse=True)
    assert rate_factor(inner, 10_000) == pytest.approx(0.2)


def test_a_warmup_longer_than_the_run_is_harmless() -> None:
    inner = AdamWSpec(schedule="linear", total_steps=5, warmup_steps=10)
    assert rate_factor(inner, 4) == 0.5 and 0 < rate_factor(inner, 50) <= 1
