"""Commands that play one run of plain nodes, and no region's hub.

In flows a recipe; out flows the same. Invariant: a recipe for regions is refused before anything runs, since with plain
nodes in the hubs' places the figures would be another algorithm's.
"""

from __future__ import annotations

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe


def without_regions(recipe: Recipe, name: str) -> Recipe:
    """Raises SH-RECIPE-03 if the recipe of this name is one for regions."""
    if recipe.strategy.region is not None:
        inside = recipe.strategy.region.preset
        raise ShoalError(
            "SH-RECIPE-03",
            f"{name} is trained by regions, and no node here is a region's hub",
            f"take what they train by ({inside}); `shoal bench converge` and `shoal sim fleet --regions` play regions",
        )
    return recipe
