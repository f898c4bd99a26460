"""Standing by and leading: a coordinator that shares its store with others.

In flows the store's word on who leads; out flow the addresses of all coordinators, and SH-LEAD-01 when the lead is
lost. Invariant: a leader never goes on for longer than its lease without the store's word: it gives up before anybody
else may take over, and the store would refuse its writes if it did not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shoal.base.host import Host
from shoal.base.lead import Candidate, SharedStore, Standing, lead_lapsed, lead_lost

LEASE_S = 2.5
"""How long a leader that has fallen silent is waited for. Shorter is quicker to recover, and more easily led astray by
a slow database."""
RENEW_S = 0.5


class Lead:
    """One coordinator's part in it."""

    def __init__(self, store: SharedStore, name: str, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._me = Candidate(name)
        self._lease_s = lease_s
        self._renewed = 0.0
        self.standing = Standing(leads=False, leader=self._me, others=())

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where nodes may find a coordinator, this one first."""
        found = (self._me, *self.standing.others)
        return tuple(candidate.address for candidate in found if candidate.address)

    async def win(self, host: Host, address: str, blobs: str, follow: Callable[[], Awaitable[None]]) -> None:
        """Stand by until the lead is free, and take it. `follow` is called while somebody else has it."""
        self._me = Candidate(self._me.name, address, blobs)
        while not await self._stand(host):
            await follow()
            await host.clock.sleep(RENEW_S / 2)

    async def hold(self, host: Host, changed: Callable[[], Awaitable[None]]) -> None:
        """Keep the lead for as long as the store lets us. Raises SH-LEAD-01 when it is lost; `changed` is called when
        somebody came to stand by, or went."""
        while True:
            await host.clock.sleep(RENEW_S)
            before = self.addresses
            if not await self._stand(host):
                raise (
                    lead_lapsed(self._lease_s)
                    if self.standing.leads
                    else lead_lost(self.standing.leader.name)
                )
            if self.addresses != before:
                await changed()

    async def _stand(self, host: Host) -> bool:
        asked = host.clock.now()
        self.standing = await host.work(lambda: self._store.stand(self._me, self._lease_s))
        return self.standing.leads and host.clock.now() - asked < self._lease_s
