"""The recipe's `strategy:` section: one small model for each piece of an algorithm.

In flows what a person wrote; out flow checked values and the pieces they name. Invariant: `kind`, `rule` and
their parameters are checked against the registries, so adding a piece needs no change here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.codec import CODECS
from shoal.replica.fold import FoldRules
from shoal.strategy.merge import MERGE_RULES, MergeRule
from shoal.strategy.mistakes import Mistake, Unsound, shown
from shoal.strategy.seal_rules import SEAL_RULES, SealRule

T = TypeVar("T")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Piece(BaseModel):
    """A registered piece: its name under `kind`, everything else its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)
    kind: str

    def params(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    def make(self, registry: Mapping[str, Callable[..., T]]) -> T:
        """The piece itself. Raises `Mistake`, in words, for an unknown name or parameter or a wrong value."""
        if self.kind not in registry:
            raise Mistake(f"found {self.kind!r}; allowed: {', '.join(sorted(registry))}", at="kind")
        factory, params = registry[self.kind], self.params()
        allowed = _parameters(factory)
        for name, value in params.items():
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise Mistake(f"{self.kind} has no such parameter; allowed: {known}", at=name)
            _check_value(name, value, allowed[name])
        try:
            return factory(**params)
        except (ValueError, TypeError, ArithmeticError) as error:
            found = ", ".join(f"{name}={shown(value)}" for name, value in params.items())
            raise Mistake(f"{error} (found {found})") from None


@lru_cache(maxsize=256)
def _parameters(factory: Callable[..., object]) -> dict[str, Any]:
    """A piece's parameters and their types."""
    signature = inspect.signature(factory, eval_str=True)
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a finite number"),
    str: ((str,), "text"),
}


def _check_value(name: str, value: object, wanted: Any) -> None:
    kinds, words = _TYPES[wanted]
    fits = isinstance(value, kinds) and (wanted is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise Mistake(f"found {shown(value)}; allowed: a plain value, {words}", at=name)


class CodecPiece(Piece):
    error_feedback: bool = False
    """Remember what the codec loses and add it to the next update."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(CODECS)
        return self


class SealPiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(SEAL_RULES)
        return self


class AggregatePiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(AGGREGATORS)
        return self


class OuterPiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(OUTER_OPTIMIZERS)
        return self


class MergePiece(Piece):
    @model_validator(mode="after")
    def _check(self) -> Self:
        self.make(MERGE_RULES)
        return self


class Schedule(Section):
    """What a node does between claims."""

    steps: int = Field(default=30, ge=1, le=100_000)
    """Local steps a round. Raise it when the link is slow against a step; early training wants it low."""
    overlap: bool = False
    """Keep training while updates travel; needs a merge rule that keeps local progress."""
    fragments: int = Field(default=1, ge=1, le=1024)
    """Into how many parts the state is cut."""


class Strategy(Section):
    """An algorithm as a composition."""

    preset: str = "diloco"
    schedule: Schedule = Schedule()
    codec: CodecPiece
    seal: SealPiece
    aggregate: AggregatePiece
    outer: OuterPiece
    merge: MergePiece

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.schedule.overlap and not self.merge_rule().keeps_progress:
            raise Unsound(
                f"overlap with merge {self.merge.kind!r}: what is trained while updates travel would be thrown "
                "away; use merge mix, or overlap false"
            )
        return self

    def fold_rules(self) -> FoldRules:
        return FoldRules(
            self.codec.make(CODECS), self.aggregate.make(AGGREGATORS), self.outer.make(OUTER_OPTIMIZERS)
        )

    def seal_rule(self) -> SealRule:
        return self.seal.make(SEAL_RULES)

    def merge_rule(self) -> MergeRule:
        return self.merge.make(MERGE_RULES)
