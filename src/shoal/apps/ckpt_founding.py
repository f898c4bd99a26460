"""Runs that begin at checkpoints: which recipe they have, and who founds them.

In flow vertices and changes to a recipe; out flows a run, founded by the coordinator that serves the home, or directly
in its store while none does. Invariant: the recipe says where it begins, so that the log alone tells the whole story.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.apps.api.client import as_sent, open_client
from shoal.apps.ckpt_reading import Opened
from shoal.apps.home import write_secret
from shoal.apps.recipes import find_recipe
from shoal.base.errors import ShoalError
from shoal.checkpoint.library import genesis_of
from shoal.checkpoint.vertices import Vertex
from shoal.coordinator.founding import found_run
from shoal.strategy.recipe import Recipe, load_recipe, parse_recipe
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.locks import at_work

NAME_LIMIT = 80


def recipe_for(
    opened: Opened,
    vertices: Sequence[Vertex],
    recipe: str | None,
    settings: Sequence[str],
    *,
    weights: Sequence[float] = (),
    unattested: bool = False,
    name: str | None = None,
) -> Recipe:
    """The recipe of a run that begins at these: a file's, else the first one's own, with the changes. Raises
    SH-RECIPE-01 to -03."""
    start: dict[str, Any] = {"vertices": [vertex.id for vertex in vertices], "unattested": unattested}
    if weights:
        start["weights"] = list(weights)
    changes = [*settings, f"start={json.dumps(start)}", *([f"name={json.dumps(name)}"] if name else [])]
    if recipe is not None:
        return load_recipe(find_recipe(recipe), overrides=changes)
    values = json.loads(genesis_of(opened.library.view_of(vertices[0].run)).recipe)
    what = "merge" if len(vertices) > 1 else "fork"
    values["name"] = f"{values['name']} / {what} of {vertices[0].id[:8]}"[:NAME_LIMIT]
    if any(setting.startswith("strategy.preset=") for setting in settings):
        values["strategy"] = {}  # Another preset fills in its own pieces.
    return parse_recipe(json.dumps(values), overrides=changes, where="the checkpoint's recipe")


def found(
    opened: Opened, recipe: Recipe, server: str | None, token: str | None, token_file: Path | None
) -> dict[str, Any]:
    """Found the run: its id, and its ticket if a coordinator serves it already."""
    try:
        with open_client(server, token, token_file, opened.home) as api:
            return as_sent(api.submit(recipe.model_dump_json()))
    except ShoalError as error:
        if error.code != "SH-API-04" or server is not None:
            raise
    identity = load_or_create_identity(opened.home.coordinator_key)
    with at_work(opened.home.coordinator):  # A coordinator may start meanwhile.
        made = found_run(
            recipe,
            identity=identity,
            store=opened.store,
            blobs=opened.library.rooms,
            wall_ms=time.time_ns() // 1_000_000,
            random=random.SystemRandom(),
        )
    write_secret(opened.home.join_token(made.run), made.token)
    return {"run": made.run, "ticket": None}
