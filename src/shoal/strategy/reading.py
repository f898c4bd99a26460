"""Plain values from the YAML that a person wrote.

In flows text; out flow mappings, lists, text and numbers. Invariant: nothing that stands in the text is dropped in
silence, and what does not read is answered with its line.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from shoal.base.errors import ShoalError

_FLOAT = "tag:yaml.org,2002:float"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML as people and JSON write it: `1e-3` is a number, and a field that is given twice a mistake."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != _MERGE:
                raise yaml.MarkedYAMLError(
                    problem=f"{name[1]!r} is given twice in one section", problem_mark=key.start_mark
                )
            seen.add(name)
        return node


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def read_yaml(text: str, where: str) -> Any:
    """Plain values from YAML. Raises SH-RECIPE-01 whatever the text is."""
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ShoalError("SH-RECIPE-01", f"{where}{line} is not YAML: {problem}", "mend the line") from None
    except RecursionError:
        raise ShoalError("SH-RECIPE-01", f"{where} is nested too deeply", "see docs/recipes.md") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # What looks like a date or a number is made into one, and what cannot be ends in any of these.
        raise ShoalError(
            "SH-RECIPE-01", f"{where} has a value that cannot be read: {error}", "put it in quotes"
        ) from None
