"""Pairs and regions among the presets that are compared: what is trained, and how their bytes are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.apps.bench.converge.command import compare
from shoal.base.errors import ShoalError

from .test_converge import _one, _question, corpus

__all__ = ["corpus"]
NEAR = ("strategy.region.schedule.steps=2", "strategy.schedule.steps=8", "strategy.schedule.overlap=8")


def test_in_pairs_a_node_takes_in_less_than_everybodys_updates(corpus: str) -> None:
    settings = (
        "model.width=96",
        "model.layers=2",
        "strategy.schedule.steps=2",
        "strategy.merge.global_every=3",
    )
    row = _one("gossip", _question(corpus, *settings, steps=12, workers=5))
    done = row.outcome
    assert done.rounds == 6 and done.steps == 12
    assert abs(row.fields()["wire_to_stated"] - 1) < 0.02
    # Two rounds in three bring a partner's update, and one that was pushed here for safekeeping; one brings four.
    assert 1.5 < done.received_bytes / done.sent_bytes < (2 * 2 + 4) / 3 + 0.1


def test_regions_train_as_much_and_count_both_levels(corpus: str) -> None:
    row = _one("halos", _question(corpus, "model.width=96", "model.layers=2", *NEAR, steps=12, workers=4))
    fields, done = row.fields(), row.outcome
    assert 12 <= done.steps <= 14 and done.tokens == done.steps * 4 * 2 * 16
    assert abs(fields["wire_to_stated"] - 1) < 0.1, "at the end some updates are on their way"
    parts = ("wire_update_bytes", "wire_state_bytes", "wire_control_bytes")
    assert sum(fields[part] for part in parts) == fields["wire_bytes"]
    assert 0 < fields["far_bits_per_param_step"] < 0.5 * fields["received_bits_per_param_step"]


def test_the_seed_decides_with_regions_too(corpus: str) -> None:
    question = _question(corpus, *NEAR, steps=8, workers=3)
    first, again = _one("halos", question), _one("halos", question)
    assert first.outcome == again.outcome
    assert first.outcome.loss != _one("halos", replace(question, seed=4)).outcome.loss


@pytest.mark.parametrize("preset", ["gossip", "halos"])
def test_lockstep_has_neither(corpus: str, preset: str) -> None:
    with pytest.raises(ShoalError) as caught:
        compare([preset], _question(corpus), "lockstep", lambda text: None)
    assert caught.value.code == "SH-RECIPE-03" and "simulated" in caught.value.next_step


def test_regions_need_workers(corpus: str) -> None:
    with pytest.raises(ShoalError) as caught:
        _one("halos", _question(corpus, workers=1))
    assert caught.value.code == "SH-RECIPE-03" and "--workers" in caught.value.next_step
