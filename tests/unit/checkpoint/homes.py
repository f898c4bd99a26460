"""A coordinator's home with a run in it, made without any process, and two branches of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

from apps.runs_to_join import RECIPE

from shoal.apps.ckpt_founding import found, recipe_for
from shoal.apps.ckpt_reading import Opened, opened
from shoal.checkpoint.vertices import Vertex
from shoal.coordinator.founding import found_run
from shoal.strategy.recipe import parse_recipe
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.sqlstore import SqlLogStore

TEXT = "the quick brown fox jumps over the lazy dog. " * 200


def make_home(folder: Path, **strategy: object) -> Path:
    """A home whose one run has just begun."""
    home = folder / "home"
    text = folder / "text.txt"
    text.write_text(TEXT, "utf-8")
    recipe = parse_recipe(
        RECIPE.format(text=text, rounds=3), overrides=["strategy.preset=diloco"], environment={}
    )
    os.makedirs(home / "coordinator")
    SqlLogStore(f"sqlite:///{home / 'coordinator' / 'store.sqlite'}").close()
    with opened(home, None) as here:
        found_run(
            recipe,
            identity=load_or_create_identity(here.home.coordinator_key),
            store=here.store,
            blobs=here.library.rooms,
            wall_ms=1000,
            random=random.Random(1),
        )
    return home


def branch(
    here: Opened, *parents: Vertex, settings: tuple[str, ...] = (), weights: tuple[float, ...] = ()
) -> Vertex:
    """A run that begins at these, founded while no coordinator is on."""
    recipe = recipe_for(here, parents, None, settings, weights=weights)
    run = found(here, recipe, None, None, None)["run"]
    return next(vertex for vertex in here.library.dag().vertices if vertex.run == run)
