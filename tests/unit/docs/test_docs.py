"""The docs say what the code does."""

from __future__ import annotations

from pathlib import Path

from shoal.apps.recipes.reference import reference
from shoal.base.errors import CODES

DOCS = Path(__file__).parents[3] / "docs"


def test_the_recipe_reference_is_the_schema() -> None:
    written = (DOCS / "recipes.md").read_text("utf-8")
    assert written == reference(), "run: python -m shoal.apps.recipes.reference > docs/recipes.md"


def test_every_error_code_is_explained_and_no_other() -> None:
    rows = [line for line in (DOCS / "errors.md").read_text("utf-8").splitlines() if line.startswith("| SH-")]
    assert [row.split("|")[1].strip() for row in rows] == list(CODES)
    for row in rows:
        code, meaning, advice = (cell.strip() for cell in row.strip("|").split("|"))
        assert meaning == CODES[code]
        assert len(advice) > 20


def test_every_code_in_use_is_registered_and_used() -> None:
    source = Path(__file__).parents[3] / "src"
    text = "\n".join(
        path.read_text("utf-8") for path in sorted(source.rglob("*.py")) if path.name != "errors.py"
    )
    unused = [code for code in CODES if code not in text]
    assert not unused
