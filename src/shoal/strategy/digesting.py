"""Whether a round is folded through digests: by the bytes, with the reason.

In flow the recipe, the log and who is ready; out flow how many fold each shard, and into how many shards updates are
cut. Invariant: a function of the log, the recipe and what the coordinator measured; a run does not go back and forth
where the two cost about the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.units import show_bytes
from shoal.codec.base import SizedCodec
from shoal.codec.dense import DENSE
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe

WORTH = 1.25
"""Digests begin where updates are so many times their bytes, and go on as long as they are more."""
HIDDEN = 0.05
"""Nor do they begin where so little of a round is not training that the updates must be hidden behind it."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """See `Plan.folders` and `Plan.shards`."""

    folders: int = 0
    shards: int = 0
    reason: str = ""


EVERYBODY = Sharding()


def sharding_of(recipe: Recipe, view: RunView, nodes: int, idle_share: float | None) -> Sharding:
    """How the next round is folded, by so many nodes; `idle_share` is what part of a round was not training, None if
    that is not known."""
    if view.plan is not None:
        return Sharding(view.plan.folders, view.plan.shards)
    digest = recipe.strategy.digest
    warm = view.steps_done >= recipe.strategy.codec.warmup_rounds
    if digest is None or not digest.folders or not warm or not nodes:
        return EVERYBODY
    chosen = Sharding(digest.folders, digest.shards, f"through digests of {digest.folders} folders")
    if digest.when == "always":
        return chosen
    updates, digests = costs(recipe, view, nodes)
    before = bool(view.path and view.path[-1].shards)
    hidden = not before and idle_share is not None and idle_share <= HIDDEN
    if updates <= digests * (1 if before else WORTH) or hidden:
        return EVERYBODY
    words = f"{chosen.reason}, {show_bytes(digests)} instead of {show_bytes(updates)} a node"
    return Sharding(chosen.folders, chosen.shards, words)


def costs(recipe: Recipe, view: RunView, nodes: int) -> tuple[int, int]:
    """Bytes that a node fetches in a round of so many: all updates of the others; or its own shards of them, and the
    digests of all. By the updates of the last seal; nothing while there was none."""
    digest = recipe.strategy.digest
    sizes = [update.claim.size_bytes for update in view.path[-1].updates] if view.path else []
    if digest is None or not sizes or view.genesis is None:
        return 0, 0
    codec: SizedCodec = digest.make(DENSE)
    moved = sum(view.genesis.layout.fragments[index].numel for index in view.path[-1].fragments)
    others = (nodes - 1) * sum(sizes) // len(sizes)
    return others, others * min(digest.folders, nodes) // nodes + codec.size_bytes(moved)
