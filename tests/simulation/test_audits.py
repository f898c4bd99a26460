"""Claims are run again by members whom the log draws: honest ones stand, forged ones cost their author its seat."""

from __future__ import annotations

from typing import Any

from shoal.audit.docket import Case, Docket
from shoal.node.learner import Learner
from shoal.runlog.entries import Audits, Ban, Seal
from shoal.runlog.work import Planned
from shoal.worlds.simulated.liars import Liar

from .harness import Fleet, toy_recipe


class Forger(Liar):
    """Sends something else than what it trained, always."""

    async def _make_claim(self, planned: Planned, learner: Learner) -> Any:
        params = learner.trainer.params()
        params += (params - self.state.params) * -3  # type: ignore[union-attr]
        return await super()._make_claim(planned, learner)


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
