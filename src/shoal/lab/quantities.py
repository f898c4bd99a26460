"""Quantities of a fleet file ("20 Mbit/s", "40 ms", "0.5 %", "256 KiB") as types of its schema.

In flows what a person wrote; out flow bytes per second, seconds, fractions and bytes. Invariant: a number that
could be meant in several units is refused unless it has one; zero needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field

from shoal.base.units import duration_s, rate_bytes_s, size_bytes


class Mistake(ValueError):
    """A wrong value, in words for the person who wrote it."""


def _reader(kind: str, example: str, read: Callable[[str], float]) -> BeforeValidator:
    def parse(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            return 0.0
        if not isinstance(value, str):
            raise Mistake(f"found {value!r}; allowed: {kind} with its unit, e.g. {example}")
        try:
            return read(value)
        except ValueError as error:
            raise Mistake(f"{error}; allowed: {kind}, e.g. {example}") from None

    return BeforeValidator(parse)


def _with_unit(text: str) -> float:
    if text.strip().replace(".", "", 1).isdigit() and float(text) != 0:
        raise ValueError(f"{text!r} has no unit")
    return duration_s(text)


def _fraction(text: str) -> float:
    number = text.strip()
    if not number.endswith("%"):
        raise ValueError(f"{text!r} is not a percentage")
    return float(number[:-1]) / 100


def _moment(value: object) -> object:
    """A point in a schedule: plain numbers are seconds there."""
    return f"{value} s" if isinstance(value, int | float) and not isinstance(value, bool) else value


Rate = Annotated[float, _reader("a rate", "20 Mbit/s", rate_bytes_s), Field(ge=1000, le=1.25e10)]
"""Bytes per second, from 8 kbit/s to 100 Gbit/s."""
Delay = Annotated[float, _reader("a time", "40 ms", _with_unit), Field(ge=0, le=10)]
Fraction = Annotated[float, _reader("a percentage", "0.5 %", _fraction), Field(ge=0, le=1)]
Size = Annotated[float, _reader("a size", "256 KiB", size_bytes), Field(ge=3000, le=2e9)]
Moment = Annotated[
    float, _reader("a time", "10 s", duration_s), BeforeValidator(_moment), Field(ge=0, le=1e9)
]
Span = Annotated[
    float, _reader("a time", "10 min", duration_s), BeforeValidator(_moment), Field(gt=0, le=1e9)
]
