"""What members' word is worth, from what became of their work. Whole numbers, 0 to 1000.

In flow work that counted and outcomes of audits, in the log's order; out flow standings, shares of weight, and who has
lost its seat. Invariant: a function of the log alone; what audits gave or took wears off as the member goes on
working, and no standing is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.base.ids import NodeId

NEW, USUAL, BEST = 500, 800, 1000
"""Where a newcomer begins, where work alone leads, and where only audits lead."""
FULL = 300
"""From here on updates count in full; below, for that much less."""
SEAT = 100
"""Convicted below this, a member loses its seat."""
_WEARS = 100
"""Each update that counts moves a standing by so much of the way to the usual one."""


@dataclass(slots=True)
class _Record:
    standing: int = NEW
    upheld: int = 0
    convicted: int = 0


@dataclass(slots=True)
class Standings:
    _records: dict[NodeId, _Record] = field(default_factory=dict)

    def of(self, node: NodeId) -> int:
        record = self._records.get(node)
        return NEW if record is None else record.standing

    def upheld(self, node: NodeId) -> int:
        """How many audits it has passed."""
        record = self._records.get(node)
        return 0 if record is None else record.upheld

    def convictions(self, node: NodeId) -> int:
        record = self._records.get(node)
        return 0 if record is None else record.convicted

    def share(self, node: NodeId) -> int:
        """Of a thousand, how much its updates count for."""
        return share_of(self.of(node))

    def known(self) -> dict[NodeId, int]:
        return {node: record.standing for node, record in sorted(self._records.items())}

    # --- what happens ------------------------------------------------------------------------------------

    def worked(self, node: NodeId) -> None:
        """An update of it counts: it recovers, or what audits gave it wears off."""
        record = self._record(node)
        way = USUAL - record.standing
        if way:
            record.standing += way // _WEARS or (1 if way > 0 else -1)

    def passed(self, node: NodeId) -> None:
        record = self._record(node)
        record.upheld += 1
        record.standing += (BEST - record.standing) // 4

    def forged(self, node: NodeId) -> None:
        record = self._record(node)
        record.convicted += 1
        record.upheld = 0
        record.standing //= 4

    def withheld(self, node: NodeId) -> None:
        """It did not show what its claim rests on: as bad for others, but there may have been a reason."""
        record = self._record(node)
        record.convicted += 1
        record.upheld = 0
        record.standing //= 2

    def contradicted(self, node: NodeId) -> None:
        """As an auditor it said what most of the others did not find."""
        record = self._record(node)
        record.standing = record.standing * 3 // 4

    def _record(self, node: NodeId) -> _Record:
        return self._records.setdefault(node, _Record())


def share_of(standing: int) -> int:
    return BEST if standing >= FULL else max(1, standing * BEST // FULL)
