"""The dashboard that ships is the one that the sources make."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shoal.apps.api.site import FOLDER, files

WEB = Path(__file__).parents[3] / "web"


def test_it_was_built_from_these_sources() -> None:
    paths = [path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*") if path.is_file()]
    whole = hashlib.sha256()
    for path in sorted([*paths, "index.html", "package.json"]):
        whole.update(path.encode() + b"\0" + (WEB / path).read_bytes() + b"\0")
    assert (FOLDER / "source.txt").read_text().strip() == whole.hexdigest(), "run: make dashboard"


def test_everything_it_loads_is_there() -> None:
    page = (FOLDER / "index.html").read_text("utf-8")
    assert "http" not in page.replace('http-equiv="', "")
    named = [part.split('"')[0] for part in page.split('="/')[1:]]
    assert named and all(name in files() for name in named)
