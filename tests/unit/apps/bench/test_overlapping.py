"""Steps that wait for the network, and steps that do not."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.apps.bench.overlapping import Load, measure, table, waits
from shoal.base.errors import ShoalError
from shoal.codec.int8 import Int8Codec


def _rows(*loads: Load) -> list[dict[str, Any]]:
    result = measure(list(loads), lambda text: None)
    assert len(table(result)) == 2 + len(loads)
    rows: list[dict[str, Any]] = result["runs"]
    return rows


def _load(preset: str, params: int, *settings: str) -> Load:
    return Load(preset=preset, params=params, step_s=0.2, steps=12, nodes=3, seed=1, settings=settings)


def test_a_wait_is_what_lies_between_two_steps() -> None:
    assert waits([1.0, 2.0, 3.5, 4.4], 1.0) == pytest.approx([0.0, 0.5, 0.0])
    assert waits([1.0], 1.0) == []


def test_larger_updates_are_waited_for_longer() -> None:
    small, large = _rows(
        _load("local-sgd", 48_000, "strategy.schedule.steps=3"),
        _load("local-sgd", 1_920_000, "strategy.schedule.steps=3"),
    )
    assert large["update_bytes"] == pytest.approx(Int8Codec().size_bytes(1_920_000), rel=0.001)
    # Two updates of 1.92 MB at 12.5 MB/s after every third step: a third of a second more.
    waited = [1 / row["utilisation"] - 1 for row in (small, large)]
    assert waited[1] - waited[0] > 0.9 * (2 * 1.92 / 12.5) / 0.2 / 3
    assert small["never_waited"] == large["never_waited"] < 0.75


def test_what_travels_while_training_goes_on_is_waited_for_less() -> None:
    hidden, plain = _rows(
        _load("streaming-diloco", 480_000),
        _load("streaming-diloco", 480_000, "strategy.schedule.overlap=0"),
    )
    assert (hidden["tau_steps"], plain["tau_steps"]) == (2, 0)
    assert hidden["utilisation"] > plain["utilisation"] + 0.05
    assert hidden["never_waited"] >= plain["never_waited"]


@pytest.mark.parametrize(
    "regional", [_load("halos", 480), _load("diloco", 480, "strategy.region.preset=ddp")]
)
def test_what_is_trained_by_regions_is_refused_before_anything_runs(regional: Load) -> None:
    said: list[str] = []
    with pytest.raises(ShoalError, match="SH-RECIPE-03") as caught:
        measure([_load("local-sgd", 480), regional], said.append)
    assert "regions" in caught.value.cause and "what they train by" in caught.value.next_step
    assert not said
