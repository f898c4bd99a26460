"""Runs that would wait for ever, or work in vain.

In flows a recipe whose fields are all sound; out flows why no run of it should be founded. Invariant: it is asked of
what a person submits, and not of a log: a run that was founded is always read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.strategy.mistakes import shown

if TYPE_CHECKING:
    from shoal.strategy.recipe import Recipe

MOST_HYBRID_NODES = 400
"""Of whom each may have a claim of 4 kB in one seal, and a word as long in one entry of attestations."""


def most_nodes(recipe: Recipe) -> int:
    """How many nodes a run may ever have."""
    hybrid = recipe.identity.signatures == "hybrid"
    return min(recipe.membership.max_nodes, MOST_HYBRID_NODES) if hybrid else recipe.membership.max_nodes


def never_begins(recipe: Recipe) -> str:
    """Why nobody would get anything from a run of this; "" if there is no such reason."""
    membership, most = recipe.membership, most_nodes(recipe)
    if membership.min_nodes > most:
        signed = " with hybrid signatures" if most < membership.max_nodes else ""
        return (
            f"membership.min_nodes: found {membership.min_nodes}; allowed: at most the {most} nodes that may ever join"
            f"{signed} (membership.max_nodes {membership.max_nodes}), or the first round waits for ever"
        )
    listed = len(set(membership.allow))
    if membership.allow and membership.min_nodes > listed:
        return (
            f"membership.min_nodes: found {membership.min_nodes}; allowed: at most the {listed} that membership.allow "
            "names, or the first round waits for ever"
        )
    for place, address in enumerate(membership.coordinators):
        if not _is_address(address) or address in membership.coordinators[:place]:
            allowed = "each coordinator's HOST:PORT, once"
            return f"membership.coordinators.{place}: found {shown(address)}; allowed: {allowed}"
    if recipe.audit.jury < 1:
        return (
            f"audit.jury: found {recipe.audit.jury}; allowed: 1 to 8: one word alone accuses, and nobody would ever be "
            "convicted; to audit nothing, set audit.rate to 0"
        )
    return ""


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return (
        bool(colon and host) and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    )
