"""Machines of the pool that work for runs of regions: who is a hub, who a member, and with which ticket.

In flow what machines say with their offers; out flow decisions for the runs' logs, and each machine's place. Invariant:
a hub leads its machines to its own address and nowhere else, and a region's ticket goes to that region's machines only.
"""

from __future__ import annotations

from shoal.apps.api.models import PoolPlace
from shoal.apps.hub_address import no_hub, read_hub_address
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.events import RegionsDecided
from shoal.coordinator.served import Run
from shoal.coordinator.service import CoordinatorService
from shoal.planner.pool import ASK_AGAIN_S, FORGOTTEN_S
from shoal.planner.region_pool import Place, RegionPool, Word
from shoal.wire.ticket import read_ticket


def has_regions(served: Run) -> bool:
    return served.machine.recipe.strategy.region is not None


class RegionDesk:
    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._pools: dict[RunId, RegionPool] = {}
        self._hub_offered_at: float | None = None

    def possible_in(self, served: Run) -> bool:
        """Whether this run has regions, or somebody offered lately who may be the hub of one."""
        at, decided = self._hub_offered_at, served.machine.view.regions
        lately = at is not None and self._service.host.clock.now() - at <= FORGOTTEN_S
        return lately or bool(decided and decided.items)

    def heard(self, word: Word) -> None:
        """Before it is known which run a machine works for. Raises SH-POOL-03 for an address or a ticket that cannot
        be."""
        check_word(word)
        if word.address:
            self._hub_offered_at = self._service.host.clock.now()

    async def place(self, run: RunId, word: Word, ticket: str) -> PoolPlace:
        """What a machine of this run is to do now; `ticket` is the run's own."""
        served, now = self._service.runs.get(run), self._service.host.clock.now()
        if served is None:  # It was dropped meanwhile: another coordinator leads.
            why = "its run is not served here now"
            return PoolPlace(run=None, ticket=None, reason=why, ask_again_s=ASK_AGAIN_S, undecided=True)
        pool, machine = self._pool(run), served.machine
        pool.offer(word, machine.view, now)
        if decided := pool.decide(machine.view, machine.seats.live(now), now):
            await self._service.post(run, RegionsDecided(decided))
        found = pool.place(word.node, machine.view)
        return PoolPlace(
            run=run,
            ticket=found.ticket,
            reason=found.reason,
            ask_again_s=pool.ask_again_s,
            region=found.region,
            hub_ticket=ticket if found.leads else None,
            probe={str(node): address for node, address in pool.probes(word.node).items()},
        )

    def shown(self, run: RunId, node: NodeId) -> Place | None:
        """A machine's place, for those who look; None where a run has no regions."""
        served = self._service.runs.get(run)
        return self._pool(run).place(node, served.machine.view) if served and has_regions(served) else None

    def withdraw(self, node: NodeId, *, but: RunId | None = None) -> None:
        """It is not to be had any more, for any run but this one."""
        for run, pool in self._pools.items():
            if run != but:
                pool.withdraw(node)

    def _pool(self, run: RunId) -> RegionPool:
        if run not in self._pools:
            lease_s = self._service.runs[run].machine.recipe.membership.lease_s
            self._pools[run] = RegionPool(lease_s, self._service.host.clock.now())
        return self._pools[run]


def check_word(word: Word) -> None:
    """Raise SH-POOL-03 unless the address is one, and the ticket leads there."""
    if word.address:
        read_hub_address(word.address)
    if word.ticket:
        try:
            ticket = read_ticket(word.ticket)
        except ShoalError as error:
            raise no_hub(error.cause) from None
        if ticket.addresses != (word.address,):
            raise no_hub("the ticket of its region leads elsewhere than to its own address")
