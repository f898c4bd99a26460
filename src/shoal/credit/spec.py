"""The recipe's `credit:` section: what work is worth, and who has a share in it.

In flows what a person wrote; out flows a checked, frozen value. Invariant: whole numbers only, so that everybody who
recomputes a run's credit gets it to the last millionth.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.base.section import Section

_AMOUNT = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?")
MICRO = 1_000_000
"""A credit has a million of these."""
MOST_MICRO = 10**15
"""No update and no budget is worth more: a thousand million credits."""
MOST_TOTAL_MICRO = 10**18
"""No run is, so that every sum fits the integers that pages are written with."""


class CreditSpec(Section):
    """What each update that counts earns: a price for each unit of work, of which holders, auditors and the coordinator
    have their shares. What one node earns by training never depends on what another did or failed to do."""

    unit: Literal["samples", "tokens"] = "samples"
    """What is counted: the samples or the tokens of sealed updates, each once."""
    price_micro: int = Field(default=1_000, ge=0, le=10**12)
    """Millionths of a credit for one unit."""
    rule: Literal["proportional", "quality"] = "proportional"
    """Pay for the work alone, or also by how much of its weight the update counted for and how reliably its node
    delivered before."""
    most_micro: int | None = Field(default=None, ge=1, le=MOST_MICRO)
    """No update earns more than this, whatever it did."""
    budget_micro: int | None = Field(default=None, ge=0, le=MOST_MICRO)
    """What the whole run may earn, unless it is raised (`shoal run fund`). A coordinator gives out no work that the
    rest cannot pay, and the run pauses; an entry that goes beyond it all the same shares out what is left."""
    hubs_percent: int = Field(default=5, ge=0, le=100)
    """Of each update's price, for those whose receipts say that they hold it and serve it."""
    auditors_percent: int = Field(default=5, ge=0, le=100)
    """Of each update's price, for those who attested the state that most attested."""
    coordinator_percent: int = Field(default=0, ge=0, le=100)
    """Of each update's price, for the coordinator."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.others_percent > 100:
            raise ValueError(f"the shares come to {self.others_percent} percent; allowed: 100 together")
        return self

    @property
    def others_percent(self) -> int:
        return self.hubs_percent + self.auditors_percent + self.coordinator_percent


def read_credits(text: str) -> int:
    """ "1.5" -> 1500000. Raises ValueError for what is no amount, or has more than six decimals."""
    found = _AMOUNT.fullmatch(text.replace(",", "").strip())
    if found is None:
        raise ValueError(f"{text!r} is not an amount of credits; write it like 12 or 0.001, to six decimals")
    return int(found[1]) * MICRO + int((found[2] or "").ljust(6, "0"))


def show_credits(micro: int) -> str:
    """1234567 -> "1.234567"."""
    sign, whole = "-" if micro < 0 else "", abs(micro)
    return f"{sign}{whole // MICRO:,}.{whole % MICRO:06}"
