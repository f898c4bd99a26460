"""Which of the recipe's codecs updates are encoded with: the finest whose bytes there is time for.

In flow the codecs, from the largest to the smallest, and how long the bytes of each would travel; out flows the number
of one, with the reason. Invariant: pure; the recipe's own codec is always allowed, one that chooses values only while
rounds enough are left for every value to have its turn. Round trips and waiting are no part of it: no codec makes
them shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.planner.estimates import TURNS

FINER_ROOM = 0.5
"""Of the time that there is, what a finer codec than the last may take: what nearly fits would go back and forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the recipe's codecs."""

    name: str = ""
    size: float = 1.0
    """Of an update, against one by the recipe's own codec."""
    density: float | None = None
    """If it chooses values, and may choose fewer."""

    def has_turns(self, rounds_left: float) -> bool:
        """Whether every value comes to travel in the rounds that are left."""
        return self.density is None or rounds_left * self.density >= TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    number: int
    reason: str = ""


def choose(choices: Sequence[Choice], whole_s: float, room_s: float, rounds_left: float, last: int) -> Chosen:
    """One of these for the whole round: by the recipe's own codec its bytes would travel for `whole_s`, and there is
    time for `room_s` of that; `last` is the number of the last round's."""
    if len(choices) == 1:
        return Chosen(number=0)
    allowed = [number for number, one in enumerate(choices) if not number or one.has_turns(rounds_left)]
    rooms_s = {number: room_s * (FINER_ROOM if number < last else 1.0) for number in allowed}
    fitting = (number for number in allowed if whole_s * choices[number].size <= rooms_s[number])
    chosen = next(fitting, allowed[-1])
    words = f"updates by {choices[chosen].name}"
    if chosen:
        finer = allowed[allowed.index(chosen) - 1]
        words += (
            f": by {choices[finer].name} they would travel for {whole_s * choices[finer].size:.2g} s, and there is "
            f"time for {rooms_s[finer]:.2g} s"
        )
    return Chosen(number=chosen, reason=words)
