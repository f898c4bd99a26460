"""Looks: samples that the log assigned, the telling ones of those that were drawn, as many as are paid for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat

import numpy as np
import torch

from shoal.audit.docket import WINDOW
from shoal.audit.spec import AuditSpec, Glance
from shoal.base.layout import make_layout
from shoal.codec.base import CHUNK
from shoal.data.assignment import Indices
from shoal.node.auditing import SEALS_SKETCHED, UPDATES_REMEMBERED, seals_remembered
from shoal.node.looking import Assigned, looking, telling

CLAIM = Assigned(author="a", count=100, at=lambda places: 1000 + np.asarray(places))


class _Known:
    """Samples' losses are known, and so is how long what they move lasts: half for the later half of the places."""

    def __init__(self, hard: set[int]) -> None:
        self.hard = hard
        self.asked: list[Indices] = []
        self.pulled: list[tuple[Indices, torch.Tensor]] = []

    def losses(self, indices: Indices) -> torch.Tensor:
        self.asked.append(indices)
        return torch.tensor([3.0 if int(index) in self.hard else 2.0 for index in indices])

    def pull(self, indices: Indices, weights: torch.Tensor) -> torch.Tensor:
        self.pulled.append((indices, weights))
        return torch.ones(5)

    def lasting(self, later: int) -> float:
        return 1.0 if later >= 50 else 0.5


def test_those_are_chosen_that_should_have_moved_the_model_most() -> None:
    plain = _Known(set())
    telling(plain, CLAIM, Glance(16, 4), 0, "seed")
    (drawn,) = plain.asked
    early = [int(index) for index in drawn if index < 1050]
    late = [int(index) for index in drawn if index >= 1050]
    assert len(drawn) == 16 and len(early) > 4 and late, "this seed draws both"
    chosen, weights = telling(plain, CLAIM, Glance(16, 4), 0, "seed")
    assert set(chosen.tolist()) <= set(early) and weights.tolist() == [1.0] * 4
    # Three halves are less than two: a late sample has to be harder than that to come before early ones.
    chosen, _ = telling(_Known(set(late)), CLAIM, Glance(16, 4), 0, "seed")
    assert set(chosen.tolist()) <= set(early)
    chosen, weights = telling(_Known({early[-1]}), CLAIM, Glance(16, 1), 0, "seed")
    assert chosen.tolist() == [early[-1]] and weights.tolist() == [1.0]
    chosen, weights = telling(plain, CLAIM, Glance(16, 16), 0, "seed")
    assert weights.tolist() == [1.0 if index < 1050 else 0.5 for index in chosen]


def test_looks_are_at_other_samples_each_time_and_at_no_more_than_is_paid_for() -> None:
    trainer, spec = _Known(set()), AuditSpec(rate=0.05)
    claims = [
        Assigned(author=str(author), count=320, at=lambda places: np.asarray(places)) for author in range(20)
    ]
    found = looking(trainer, spec, claims, [], torch.Tensor.clone, "seed")
    for rung, (count, glance) in enumerate(spec.glances(320, 20)):
        found.pulls(range(count), rung)
        assert {len(one) for one in trainer.asked[-count:]} == {glance.drawn}
        assert {len(one) for one, _ in trainer.pulled[-count:]} == {glance.hardest}
    cost = sum(len(one) for one in trainer.asked) / 3 + sum(len(one) for one, _ in trainer.pulled)
    assert abs(cost / (320 * 20) - spec.looks_cost(320, 20)) < 1e-9
    assert not np.array_equal(trainer.asked[0][:9], trainer.asked[20][:9])


def test_small_fleets_remember_more_seals_and_long_updates_few() -> None:
    def seals(updates: Iterable[int], numel: int = 4000) -> int:
        return seals_remembered(make_layout([("weight", (numel,))]), updates)

    assert seals(repeat(20)) * 20 == UPDATES_REMEMBERED
    assert seals(repeat(10)) == 2 * seals(repeat(20))
    assert seals(repeat(500)) == seals(repeat(200)) == WINDOW
    assert seals(repeat(20), 1000 * CHUNK) == SEALS_SKETCHED
    assert seals(chain([1, 0], repeat(20))) == 2 + (UPDATES_REMEMBERED - 2) // 20
    assert seals(repeat(0)) == UPDATES_REMEMBERED
