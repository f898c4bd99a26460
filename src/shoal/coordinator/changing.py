"""What an organiser may change while a run is on: whether work is given out, and a few values of the recipe.

In flow wishes; out flow the recipe that the coordinator goes by from then on, and events as a paused run takes them.
Invariant: nothing that nodes compute with changes: the log's recipe stays the run's, and what is changed here only
decides when the coordinator plans, waits, keeps and ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from pydantic import ValidationError

from shoal.base.errors import ShoalError
from shoal.coordinator.events import Event, Said
from shoal.strategy.mistakes import explain
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Heartbeat

WISH_PREFIX = "wish."
PAUSED, CHANGES = WISH_PREFIX + "paused", WISH_PREFIX + "changes"
Change = int | float | bool | None

CHANGEABLE = (
    "budget.rounds",
    "budget.tokens",
    "budget.seconds",
    "membership.max_nodes",
    "membership.lease_s",
    "membership.reconnect_s",
    "storage.keep_bytes",
    "storage.archive",
)


@dataclass(frozen=True, slots=True)
class Changed:
    """The run goes on with this recipe."""

    recipe: Recipe


def changeable(recipe: Recipe) -> dict[str, Change]:
    """What may be changed, with the values of now."""
    found = {path: getattr(getattr(recipe, path.split(".")[0]), path.split(".")[1]) for path in CHANGEABLE}
    return dict(found)


def changed_recipe(recipe: Recipe, encoded: bytes | None) -> Recipe:
    """The recipe with these changes. Raises SH-RECIPE-02 for what may not be changed, or not to this."""
    if not encoded:
        return recipe
    changes = msgspec.json.decode(encoded, type=dict[str, Change])
    values = recipe.model_dump()
    for path, value in sorted(changes.items()):
        if path not in CHANGEABLE:
            raise ShoalError(
                "SH-RECIPE-02",
                f"{path[:60]!r} cannot be changed while a run is on",
                f"what can: {', '.join(CHANGEABLE)}",
            )
        section, name = path.split(".")
        values[section][name] = value
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise explain(error, Recipe, "the run cannot go on so") from None


def resting(event: Event) -> Event:
    """In a paused run, whoever speaks is at rest."""
    if isinstance(event, Said) and isinstance(event.message, Heartbeat) and not event.message.paused:
        return Said(event.node, msgspec.structs.replace(event.message, paused=True))
    return event
