"""Claims that audits convicted, for what they had earned.

In flow members' words on others' claims, as the log has them; out flow the claims that they convict. Invariant: a
function of the log's entries alone, and once convicted a claim stays so: at least two words accuse it, and more than
half of a whole panel, which is an auditor and the recipe's jury.

Who was drawn to judge what is the docket's to say (`audit/docket.py`), and coordinators write down no other words; so a
claim that is convicted here is convicted there, but where a fleet is too small for a whole jury it may stand here.
"""

from __future__ import annotations

import json

from shoal.base.ids import NodeId
from shoal.runlog.entries import Genesis, Verdict

_JURY = 2
"""What a recipe that does not say has."""
Claimed = tuple[NodeId, int, int]
"""A claim: its author, its sequence, and the position of the seal that accepted it."""


class Convictions:
    def __init__(self) -> None:
        self._words: dict[Claimed, dict[NodeId, bool]] = {}
        self._convicted: set[Claimed] = set()
        self._panel = 1 + _JURY
        self.possible = False
        """The recipe asks for audits."""

    def founded(self, genesis: Genesis) -> None:
        recipe = json.loads(genesis.recipe)
        audit = recipe.get("audit") if isinstance(recipe, dict) else None
        if isinstance(audit, dict):
            self.possible = bool(audit.get("rate", 0))
            self._panel = 1 + int(audit.get("jury", _JURY))

    def heard(self, word: Verdict) -> Claimed | None:
        """The claim that this word convicts; None if it convicts none. A member's first word on a claim counts."""
        claimed = word.author, word.sequence, word.at.position
        words = self._words.setdefault(claimed, {})
        words.setdefault(word.node, word.outcome != "upheld")
        accusing = sum(words.values())
        if claimed in self._convicted or accusing < 2 or 2 * accusing <= self._panel:
            return None
        self._convicted.add(claimed)
        return claimed
