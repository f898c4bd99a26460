"""Recipes before they are runs: the schema, the presets, what is wrong with one, and what it would take.

In flows recipe text; out flow complaints by field, or the checked recipe and an estimate. Invariant: what is accepted
here is accepted by `submit`; an estimate says what it rests on.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch
import yaml

from shoal.apps.api.models import Complaint, Estimate, PresetInfo, RecipeCheck, RecipeForms
from shoal.apps.recipes import shipped
from shoal.base.errors import ShoalError
from shoal.codec import CODECS
from shoal.data.spec import BpeTokenizerSpec, ByteTokenizerSpec, DigitsSource
from shoal.strategy.presets import PRESETS
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.spec import CnnSpec, GptSpec, MlpSpec

ASSUMED_FLOPS = 2e10
"""What one node is taken to do in a second, where nothing better is known: some threads of a laptop."""
PROBE_VALUES = 1 << 15
_PATH = re.compile(r"; (?=(?!allowed: )[a-z_]+(?:\.[a-z0-9_]+)*: )")


@lru_cache(maxsize=1)
def recipe_forms() -> RecipeForms:
    """Everything a form needs."""
    recipes = {name: yaml.safe_load(path.read_text("utf-8")) for name, path in shipped().items()}
    presets = [PresetInfo(name=name, pieces=row) for name, row in PRESETS.items()]
    return RecipeForms(schema=Recipe.model_json_schema(), presets=presets, recipes=recipes)


def check_recipe(text: str, nodes: int) -> tuple[RecipeCheck, Recipe | None]:
    """What is wrong with a recipe, by field; or what it would take with so many nodes."""
    try:
        recipe = parse_recipe(text, environment={})
    except ShoalError as error:
        return RecipeCheck(ok=False, complaints=complaints(error), recipe=None, estimate=None), None
    return (
        RecipeCheck(ok=True, complaints=[], recipe=recipe.model_dump(), estimate=estimate(recipe, nodes)),
        recipe,
    )


def complaints(error: ShoalError) -> list[Complaint]:
    """A recipe's error as one complaint for each field it names."""
    words = error.cause.removeprefix("recipe: ")
    found = []
    for part in _PATH.split(words):
        path, colon, message = part.partition(": ")
        known = bool(colon) and re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)*", path) is not None
        found.append(
            Complaint(
                path=path if known and path != "recipe" else "",
                message=message if known else part,
                code=error.code,
            )
        )
    return found


def estimate(recipe: Recipe, nodes: int) -> Estimate:
    """What the run would take with so many nodes, by the recipe alone."""
    schedule, batch = recipe.strategy.schedule, recipe.inner.batch_size
    context = getattr(recipe.data, "context", 1)
    round_tokens = schedule.steps * batch * context * nodes
    rounds = recipe.budget.rounds
    if rounds is None and recipe.budget.tokens is not None:
        rounds = -(-recipe.budget.tokens // round_tokens)
    parameters = count_parameters(recipe)
    bytes_each = None if parameters is None else _update_bytes(recipe, parameters)
    flops = None if parameters is None else 6.0 * parameters * schedule.steps * batch * context
    seconds = None if flops is None or rounds is None else rounds * flops / ASSUMED_FLOPS
    if recipe.budget.seconds is not None:
        seconds = min(seconds or recipe.budget.seconds, recipe.budget.seconds)
    units = round_tokens if recipe.credit.unit == "tokens" else schedule.steps * batch * nodes
    return Estimate(
        nodes=nodes,
        rounds=rounds,
        parameters=parameters,
        tokens=None if rounds is None else rounds * round_tokens,
        seconds=seconds,
        node_hours=None if seconds is None else seconds * nodes / 3600,
        update_bytes=bytes_each,
        upload_bytes_each=None if rounds is None or bytes_each is None else rounds * bytes_each,
        download_bytes_each=(
            None if rounds is None or bytes_each is None else rounds * bytes_each * max(0, nodes - 1)
        ),
        credits_micro=None if rounds is None else rounds * units * recipe.credit.price_micro,
        rests_on=f"{nodes} equal nodes of {ASSUMED_FLOPS / 1e9:.0f} GFLOP/s each, waiting not counted",
    )


def count_parameters(recipe: Recipe) -> int | None:
    """How large the model is, where the recipe alone says it."""
    spec = recipe.model
    if isinstance(spec, GptSpec):
        vocabulary = _vocabulary(recipe)
        if vocabulary is None:
            return None
        mlp = (3 if spec.mlp == "swiglu" else 2) * spec.hidden_width * spec.width
        layer = 4 * spec.width**2 + mlp + 2 * spec.width
        return spec.layers * layer + (1 if spec.tied else 2) * vocabulary * spec.width + spec.width
    if isinstance(recipe.data, DigitsSource) and isinstance(spec, MlpSpec):
        hidden = 64 * spec.width + spec.width + (spec.layers - 1) * (spec.width**2 + spec.width)
        return hidden + 10 * spec.width + 10
    if isinstance(recipe.data, DigitsSource) and isinstance(spec, CnnSpec):
        return sum(9 * spec.channels**2 * (1 << 2 * stage) for stage in range(spec.stages))
    return None


def _vocabulary(recipe: Recipe) -> int | None:
    match getattr(recipe.data, "tokenizer", None):
        case ByteTokenizerSpec():
            return 257
        case BpeTokenizerSpec() as bpe:
            return bpe.vocab_size
        case _:
            return None


def _update_bytes(recipe: Recipe, parameters: int) -> int:
    """What an update of so many parameters takes: the codec's own word on a few, scaled up."""
    codec: Any = recipe.strategy.codec.make(CODECS)
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(PROBE_VALUES, generator=generator)
    per_value = len(codec.encode(sample)) / PROBE_VALUES
    fragments = recipe.strategy.schedule.fragments if recipe.strategy.schedule.order == "rotate" else 1
    return int(per_value * parameters / fragments)
