"""A section of a recipe: how all of them are read.

In flow plain values, as a person wrote them; out flows a frozen section. Invariant: a field that nobody knows is
refused, and so is true or false where a number belongs, which would else be read as 1 or 0.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    # A section that gives true and false a meaning of its own does so in a validator like this, which runs before it.
    @model_validator(mode="before")
    @classmethod
    def _tell_truths_from_numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: _no_number(found) if name in _numbers(cls) else found for name, found in values.items()}


class _Truth:
    """True or false, as nothing that could be read as a number; shown as it was found."""

    def __init__(self, found: bool) -> None:
        self._found = found

    def __repr__(self) -> str:
        return repr(self._found)


def _no_number(found: Any) -> Any:
    """The same value, but for truths in it."""
    if isinstance(found, list | tuple):
        return [_no_number(item) for item in found]
    return _Truth(found) if isinstance(found, bool) else found


@lru_cache(maxsize=256)
def _numbers(section: type[BaseModel]) -> frozenset[str]:
    """The fields of a section that take numbers, or lists of them, and neither true nor false."""
    kinds = {name: set(_kinds(field.annotation)) for name, field in section.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def _kinds(annotation: Any) -> Iterator[Any]:
    """Every type that an annotation is made of."""
    yield annotation
    if typing.get_origin(annotation) is not typing.Literal:
        for inner in typing.get_args(annotation):
            yield from _kinds(inner)
