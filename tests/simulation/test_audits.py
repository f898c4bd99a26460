"""Claims are run again by members whom the log draws: honest ones stand, forged ones cost their author its seat."""

from __future__ import annotations

from typing import Any

import torch

from shoal.audit.docket import Case, Docket
from shoal.data.assignment import Indices
from shoal.node.learner import Learner
from shoal.runlog.entries import Audits, Ban, Screening, Seal
from shoal.runlog.work import Planned
from shoal.worlds.simulated.liars import Liar
from shoal.worlds.simulated.toy import ToyTrainer

from .harness import Fleet, toy_recipe


class Forger(Liar):
    """Sends something else than what it trained, always."""

    async def _make_claim(self, planned: Planned, learner: Learner) -> Any:
        params = learner.trainer.params()
        params += (params - self.state.params) * -3  # type: ignore[union-attr]
        return await super()._make_claim(planned, learner)


class LookedAt(ToyTrainer):
    """Says where samples pull, as a real trainer does."""

    looks = 0

    def losses(self, indices: Indices) -> torch.Tensor:
        return torch.from_numpy(indices % 7).double()

    def lasting(self, later: int) -> float:
        return 1.0

    def pull(self, indices: Indices, weights: torch.Tensor) -> torch.Tensor:
        LookedAt.looks += 1
        before, local = self.params().clone(), self.local_state()
        self.step(indices, 0)
        moved = before - self.params()
        self.load(before)
        self.load_local_state(local)
        return moved


def audited(rate: float = 1.0, **audit: Any) -> Fleet:
    return Fleet(nodes=5, recipe=toy_recipe(audit={"rate": rate, **audit}))


def docket_of(fleet: Fleet) -> Docket:
    docket = Docket(fleet.recipe.audit)
    docket.follow(fleet.view)
    return docket


def cases_of(fleet: Fleet, name: str) -> list[Case]:
    return [case for case in docket_of(fleet).cases.values() if case.key[0] == fleet.id_of(name)]


def test_honest_claims_are_upheld_to_the_bit() -> None:
    fleet = audited()

    async def story() -> None:
        fleet.start()
        await fleet.rounds(8, 300)

    fleet.play(story)
    docket = docket_of(fleet)
    settled = [case for case in docket.cases.values() if case.settled_at >= 0]
    assert len(settled) > 5
    assert {case.outcome for case in settled} == {"upheld"}
    assert {word.distance for case in settled for word in case.verdicts.values()} == {0.0}
    assert not fleet.bodies(Ban)


def test_a_forger_is_convicted_by_a_jury_and_loses_its_seat() -> None:
    fleet = audited()
    fleet.lies("n2", Forger)

    async def story() -> None:
        fleet.start()
        await fleet.until(lambda: bool(fleet.bodies(Ban)), 600, "a ban")
        await fleet.rounds(4, 120)

    fleet.play(story)
    (ban,) = fleet.bodies(Ban)
    assert isinstance(ban, Ban) and ban.node == fleet.id_of("n2") and "forged" in ban.reason
    convicted = [case for case in cases_of(fleet, "n2") if case.outcome == "forged"]
    assert convicted and all(len(case.verdicts) > 1 for case in convicted)
    assert all("n2" not in fleet.contributors(step.position) for step in fleet.view.path[-2:])
    assert {case.outcome for name in ("n0", "n1", "n3", "n4") for case in cases_of(fleet, name)} <= {
        "upheld",
        "open",
    }
    seals = [body for body in fleet.bodies(Seal)]
    assert fleet.bodies(Audits) and seals


def test_looks_are_paid_for_and_leave_the_screener_as_it_was() -> None:
    slow = {"preset": "diloco", "schedule": {"steps": 100}}  # A screener has a round's time.
    fleet = Fleet(nodes=5, recipe=toy_recipe(audit={"rate": 1.0}, strategy=slow), trainer=LookedAt)
    LookedAt.looks = 0

    async def story() -> None:
        fleet.start()
        await fleet.rounds(8, 1000)

    fleet.play(story)
    screened = [word for _, word in fleet.view.audit_words if isinstance(word, Screening)]
    settled = [case for case in docket_of(fleet).cases.values() if case.settled_at >= 0]
    assert len(screened) > 4 and settled
    count = sum(number for number, _ in fleet.recipe.audit.glances(200, 5))
    assert 10 < LookedAt.looks <= (len(screened) + 1) * count
    assert {word.distance for case in settled for word in case.verdicts.values()} == {0.0}
