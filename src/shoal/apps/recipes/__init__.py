"""The recipes that ship, and how a recipe is found: by path, or by a shipped one's bare name."""

from __future__ import annotations

from pathlib import Path

from shoal.base.errors import ShoalError

_FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Every shipped recipe, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The file meant by a path or a bare name; a file in the way of a name wins. Raises SH-RECIPE-01."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name in shipped():
        return shipped()[name]
    raise ShoalError(
        "SH-RECIPE-01",
        f"there is no file {name!r}, nor a recipe of this name",
        f"give a YAML file, or one of: {', '.join(shipped())}",
    )
