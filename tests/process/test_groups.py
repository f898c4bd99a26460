"""A run and a masked group as real processes: the hub claims sums, a member is killed and the group goes on."""

from __future__ import annotations

import signal

import pytest

from shoal.wire.ticket import read_ticket

from .fleet import TINY, Fleet, accepted_claims
from .processes import run_shoal

RECIPE = {
    **TINY,
    "strategy": {
        "preset": "local-sgd",
        "schedule": {"steps": 12},
        "seal": {"kind": "all-or-deadline", "deadline_s": 60.0},
    },
    "masking": {"members": 3, "threshold": 0.5, "wait_s": 20.0},
}


@pytest.mark.long
def test_a_group_trains_by_sums_and_loses_a_member(fleet: Fleet) -> None:
    fleet.serve(RECIPE)
    home = fleet.home_of("hub")
    hub = fleet._start("hub", ["group", fleet.ticket, "--home", str(home), "--port", "0"], "")
    fleet.until(lambda: "ready" in hub.out.read_text().splitlines(), 60, "the hub is ready")
    ticket = next(
        line.split()[2] for line in hub.out.read_text().splitlines() if line.startswith("  shoal join")
    )
    assert read_ticket(ticket).run == fleet.run
    members = [fleet.join(f"member-{number}", ticket=ticket) for number in range(4)]
    fleet.nodes.clear()
    first = fleet.contributes("hub", within_s=120)
    assert max(claim.samples for claim, _ in accepted_claims(first)) <= 12 * 16
    members[3].kill()
    fleet.contributes("hub", after=fleet.length() + 2, within_s=120)

    lost = run_shoal(["join", fleet.ticket, "--home", str(fleet.home_of("lost")), "--yes"])
    assert lost.status == 1 and "SH-JOIN-12" in lost.err and "shoal group" in lost.err
    members[2].signal(signal.SIGINT)
    assert members[2].ended(60) == 0
    fleet.post("stop", {"reason": "enough"})
    assert hub.ended(120) == 0
    assert all(member.ended(120) == 0 for member in members[:2]), "members are told of the end"
