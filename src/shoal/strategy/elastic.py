"""How batch and learning rate follow the number of live members, by a stated rule. Pure.

In flow the recipe's rule and how many have work in a round; out flow a member's batch and a factor on the outer rate.
Invariant: with as many members as the rule names as usual, or with the rule `none`, nothing changes; every factor is a
function of the log, so that anyone recomputes it.

    none    each member does the same; a round's batch grows and shrinks with the fleet
    batch   a member's batch is what keeps the fleet's whole batch: batch x usual / live, a quarter to four times itself
    rate    the outer rate is multiplied by sqrt(live / usual), at most by 1: fewer updates make a noisier mean
"""

from __future__ import annotations

import math

from shoal.strategy.recipe import Recipe

MOST_TIMES = 4


def member_batch(recipe: Recipe, live: int) -> int:
    """The batch of each of so many members."""
    batch = recipe.inner.batch_size
    if recipe.membership.scaling != "batch" or live < 1:
        return batch
    wanted = round(batch * usual_members(recipe) / live)
    return max(1, -(-batch // MOST_TIMES), min(batch * MOST_TIMES, wanted))


def rate_factor(recipe: Recipe, live: int) -> float:
    """What the outer rate of a round of so many members is multiplied by."""
    if recipe.membership.scaling != "rate" or live < 1:
        return 1.0
    return min(1.0, math.sqrt(live / usual_members(recipe)))


def usual_members(recipe: Recipe) -> int:
    """With how many members the recipe's batch and rate are meant."""
    return recipe.membership.usual_nodes or recipe.membership.min_nodes
