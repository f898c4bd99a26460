"""What is wrong with a recipe, in the words of the file that a person wrote.

In flow plain values and the schema's complaints; out flows one error that names every field by its path, what was
found and what is allowed. Invariant: a path in an error is a path in the YAML: the tags by which the schema tells
kinds apart are never part of it.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from shoal.base.errors import ShoalError

MAX_VALUES, MAX_DEPTH = 100_000, 32
NEXT_STEP = "see docs/recipes.md for every field"
PLAIN = "allowed: text, finite numbers, true, false, null, lists and sections; put a date in quotes"
_SHOWN = 80
_MOST_BITS = 256
"""Of a whole number: far more than any field takes, and few enough to be shown."""


class Mistake(ValueError):
    """A wrong value, in words. `at` names it below the section that found it."""

    def __init__(self, words: str, *, at: str = "") -> None:
        super().__init__(words)
        self.at = at


class Unsound(ValueError):
    """Every value may stand, but not together."""


def check_plain(values: Mapping[Any, Any], where: str) -> None:
    """Refuse what JSON, and so the log, cannot hold: not-a-number, dates, endless nesting. Raises SH-RECIPE-02."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), values)]
    seen = 0
    while waiting:
        path, value = waiting.pop()
        seen += 1
        if seen > MAX_VALUES or len(path) > MAX_DEPTH:
            bounds = f"more than {MAX_VALUES} values, or nested deeper than {MAX_DEPTH}"
            raise ShoalError("SH-RECIPE-02", f"{where}: {'.'.join(path[:4])}: {bounds}", NEXT_STEP)
        if isinstance(value, Mapping):
            waiting += [((*path, str(key)), item) for key, item in value.items()]
            odd = [key for key in value if not _is_plain_text(key)]
        elif isinstance(value, list | tuple):
            waiting += [((*path, str(number)), item) for number, item in enumerate(value)]
            odd = []
        else:
            odd = [] if _is_plain(value) else [value]
        if odd:
            raise ShoalError(
                "SH-RECIPE-02",
                f"{where}: {'.'.join(path) or 'recipe'}: found {shown(odd[0])}; {PLAIN}",
                NEXT_STEP,
            )


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return value is None or _is_plain_text(value)


def _is_plain_text(value: object) -> bool:
    """Text without halves of characters, which no file can hold."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def shown(value: object) -> str:
    """A value as an error quotes it: short, whatever it is."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | list | tuple | type(None)) else str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def explain(error: ValidationError, schema: type[BaseModel], where: str) -> ShoalError:
    """Every complaint of the schema at once."""
    items = error.errors(include_url=False)
    lines = [_line(item, schema) for item in items]
    unsound = all(isinstance(_raised(item), Unsound) for item in items)
    code = "SH-RECIPE-03" if unsound else "SH-RECIPE-02"
    return ShoalError(code, f"{where}: " + "; ".join(lines), NEXT_STEP)


def _line(item: Any, schema: type[BaseModel]) -> str:
    kind, found = item["type"], item.get("input")
    keys, section = _locate(schema, item["loc"])
    path, context = ".".join(keys) or "recipe", item.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return f"{path}: unknown field{_instead(keys[-1], section)}"
        case "missing":
            return f"{path}: missing"
        case "value_error":
            raised = _raised(item)
            below = f".{raised.at}" if isinstance(raised, Mistake) and raised.at else ""
            return f"{path}{below}: {raised}"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = context["discriminator"].strip("'")
            what = f"found {shown(found[tag])}" if isinstance(found, dict) and tag in found else "missing"
            return f"{path}.{tag}: {what}; allowed: {', '.join(_tags(section, tag))}"
        case "too_short":
            return f"{path}: found {shown(found)}; allowed: at least {context['min_length']} of them"
        case _:
            allowed = item["msg"].removeprefix("Input should be ")
            return f"{path}: found {shown(found)}; allowed: {allowed}"


def _raised(item: Any) -> Exception | None:
    return item["ctx"]["error"] if item["type"] == "value_error" else None


# --- where the schema's places lie in the file ---------------------------------------------------------


def _locate(schema: type[BaseModel], place: tuple[int | str, ...]) -> tuple[list[str], Any]:
    """A place's keys in the file, and the type that its last key stands in (or is, for a choice of kinds)."""
    here: Any = schema
    section: Any = schema
    keys: list[str] = []
    for part in place:
        if (chosen := _option(here, part)) is not None:
            here = chosen
        elif _is_model(here):
            keys.append(str(part))
            section, field = here, here.model_fields.get(part)
            here = _given(field.annotation) if field else None
        elif isinstance(part, int) or typing.get_origin(here) is dict:
            keys.append(str(part))
            here = None
    return keys, here if _options(here) else section


def _given(annotation: Any) -> Any:
    """The section itself, of one that may be left out."""
    options = _options(annotation)
    return options[0] if len(options) == 1 else annotation


def _option(union: Any, tag: object) -> Any:
    """The kind of a choice that goes by this tag."""
    for option in _options(union):
        if any(tag in typing.get_args(f.annotation) for f in option.model_fields.values()):
            return option
    return None


def _tags(union: Any, discriminator: str) -> Iterator[str]:
    for option in _options(union):
        yield from typing.get_args(option.model_fields[discriminator].annotation)


def _options(annotation: Any) -> list[Any]:
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return [option for option in typing.get_args(annotation) if _is_model(option)] if is_union else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _instead(name: str, section: Any) -> str:
    known = list(section.model_fields) if _is_model(section) else []
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; allowed: {', '.join(known)}"
