"""With which keys a run is founded and signed.

In flow a recipe and an identity; out flows what signs. Invariant: a run is founded by the key whose hash is its
coordinator's id; keys that follow it take over in the log, where everybody sees it.
"""

from __future__ import annotations

from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity, Signer


def founder(recipe: Recipe, identity: Identity) -> Signer:
    """What signs the first entry of a run of this recipe."""
    return identity.first.hybrid if recipe.identity.signatures == "hybrid" else identity.first
