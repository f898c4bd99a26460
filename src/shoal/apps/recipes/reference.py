"""`docs/recipes.md`, written from the schema itself: `python -m shoal.apps.recipes.reference > docs/recipes.md`.

In flow the pydantic models and the registries; out flows Markdown. Invariant: a field that exists is documented,
and none that does not; a test compares the file with this output.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.audit.spec import AuditSpec
from shoal.codec import CODECS, UNEQUAL_CODECS
from shoal.codec.dense import DENSE
from shoal.credit.spec import CreditSpec
from shoal.privacy.spec import PrivacySpec
from shoal.secagg.spec import MaskingSpec
from shoal.strategy.merge import MERGE_RULES
from shoal.strategy.pieces import (
    CodecPiece,
    DigestPiece,
    HealthWeights,
    OuterPiece,
    Planning,
    Schedule,
    Strategy,
    Weighing,
)
from shoal.strategy.presets import PRESETS, row_for
from shoal.strategy.recipe import (
    Budget,
    Evaluation,
    IdentitySpec,
    Membership,
    Pool,
    Recipe,
    Retention,
    Start,
    Storage,
)
from shoal.strategy.seal_rules import SEAL_RULES

INTRODUCTION = """# Recipes

A recipe is a YAML file that defines a run. It is checked when it is loaded: every mistake is answered with the path of
the field, what was found and what is allowed. Two ship with Shoal and are commented line by line:
`src/shoal/apps/recipes/stdlib-gpt.yaml` and `digits.yaml`; `shoal run submit stdlib-gpt` finds them by name.

Any field can be overridden: `--set budget.rounds=5`, or `SHOAL_SET_budget__rounds=5` in the environment (the command
line wins). This page is written from the schema (`python -m shoal.apps.recipes.reference`)."""

PIECES: dict[str, Mapping[str, Callable[..., object]]] = {
    "codec": CODECS,
    "seal": SEAL_RULES,
    "aggregate": AGGREGATORS,
    "outer": OUTER_OPTIMIZERS,
    "merge": MERGE_RULES,
}


def reference() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield from _section("Top level", Recipe, only=("name", "seed"))
    for name in ("model", "data", "inner"):
        for option in _options(Recipe.model_fields[name]):
            yield from _section(f"`{name}`, {_tag(option)}", option)
    yield "\n## `strategy`\n"
    yield "`preset` fills in every piece; any of them may be given to override it. Presets:\n"
    columns = ("schedule", *PIECES, "digest", "weights", "planner", "inner", "region")
    yield "| preset | " + " | ".join(columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for title, pieces in _variants():
        whole = {"weights": {"kind": "samples"}, "planner": {"kind": "naive"}, **pieces}
        shown = [_inline(whole[piece]) if piece in whole else "" for piece in columns]
        yield f"| {title} | " + " | ".join(shown) + " |"
    yield from _section("`strategy.schedule`", Schedule)
    yield from _section("`strategy.weights`", Weighing, shows_kind=True)
    yield from _section("`strategy.planner`", Planning, shows_kind=True)
    yield from _section("`strategy.planner.health`", HealthWeights)
    yield from _section("`strategy.codec`, beside its kind and its parameters", CodecPiece)
    yield from _section("`strategy.outer`, beside its kind and its parameters", OuterPiece)
    yield from _section("`strategy.digest`, beside its kind and its parameters", DigestPiece)
    yield f"\nAny codec will do but {', '.join(sorted(UNEQUAL_CODECS))}; with folders, {', '.join(sorted(DENSE))}."
    words = " ".join((Strategy.model_fields["region"].description or "").split())
    yield f"\n## `strategy.region`, where members are hubs\n\n{words} It is a strategy of its own, with its own preset."
    yield "\n## Pieces\n\nEach is `{kind: NAME, parameter: value}`.\n"
    yield "| piece | kind | parameters |\n| --- | --- | --- |"
    for piece, registry in PIECES.items():
        for kind, factory in sorted(registry.items()):
            yield f"| `{piece}` | `{kind}` | {_parameters(factory)} |"
    sections: dict[str, type[BaseModel]] = {
        "budget": Budget,
        "membership": Membership,
        "pool": Pool,
        "identity": IdentitySpec,
        "storage": Storage,
        "storage.retention": Retention,
        "evaluation": Evaluation,
        "credit": CreditSpec,
        "audit": AuditSpec,
        "masking": MaskingSpec,
        "privacy": PrivacySpec,
        "start": Start,
    }
    for name, model in sections.items():
        yield from _section(f"`{name}`", model)


def _section(
    title: str, model: type[BaseModel], only: tuple[str, ...] | None = None, *, shows_kind: bool = False
) -> Iterator[str]:
    yield f"\n## {title}\n"
    if model.__doc__:
        yield f"{' '.join(model.__doc__.split())}\n"
    yield "| field | default | meaning |\n| --- | --- | --- |"
    for name, field in model.model_fields.items():
        if name in (only or model.model_fields) and (shows_kind or name not in ("kind", "source")):
            default = (
                "required"
                if field.is_required()
                else f"`{_shown(field.get_default(call_default_factory=True))}`"
            )
            yield f"| `{name}` | {default} | {_meaning(field)} |"


def _meaning(field: FieldInfo) -> str:
    words = " ".join((field.description or "").split())
    limits = [_limit(item) for item in field.metadata]
    choices = (
        typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()
    )
    notes = [text for text in [*limits, ", ".join(map(str, choices)) if len(choices) > 1 else ""] if text]
    return " ".join([words, f"({'; '.join(notes)})" if notes else ""]).strip()


def _limit(item: object) -> str:
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        value = getattr(item, name, None)
        if value is not None:
            return f"{sign} {value}"
    return ""


def _options(field: FieldInfo) -> list[type[BaseModel]]:
    options = typing.get_args(field.annotation)
    return [option for option in options if inspect.isclass(option) and issubclass(option, BaseModel)]


def _tag(model: type[BaseModel]) -> str:
    name = "kind" if "kind" in model.model_fields else "source"
    return f"`{name}: {typing.get_args(model.model_fields[name].annotation)[0]}`"


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return _inline(value.model_dump()).strip("`")
    return json.dumps(value) if value is None or isinstance(value, bool | dict) else str(value)


def _inline(piece: dict[str, Any]) -> str:
    return (
        "`"
        + ", ".join(f"{key} {value}" if key != "kind" else str(value) for key, value in piece.items())
        + "`"
    )


def _variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every preset, and what it is in runs of few rounds and for large batches."""
    for preset, row in PRESETS.items():
        sizes = [("", row)]
        if "large" in row:
            batch = row["large"]["batch"]
            sizes.append((f", `batch_size` {batch} or more", row_for(preset, batch)))
        for size, pieces in sizes:
            rise = (
                f", one step in {pieces['warm_up']} of `total_steps` to warm up"
                if "warm_up" in pieces
                else ""
            )
            yield f"`{preset}`{size}{rise}", pieces
            if "few" in pieces:
                few = pieces["few"]
                yield f"`{preset}`{size}, fewer than {few['rounds']} `budget.rounds`", {**pieces, **few}


def _parameters(factory: Callable[..., object]) -> str:
    found = inspect.signature(factory).parameters.values()
    return ", ".join(f"`{p.name}` = {p.default}" for p in found) or "none"


if __name__ == "__main__":
    print(reference(), end="")
