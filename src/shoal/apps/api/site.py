"""The dashboard's files, and a plain page of what the API takes.

In flow paths; out flow files that were built into the package. Invariant: only files that are in the folder's own list
are served, whatever a path says; every other path that is not the API's is the dashboard itself.
"""

from __future__ import annotations

import html
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent.parent / "dashboard"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
FOREVER = "public, max-age=31536000, immutable"


@lru_cache(maxsize=1)
def files() -> dict[str, Path]:
    """What may be served, by its path."""
    found = (path for path in sorted(FOLDER.rglob("*")) if path.is_file() and path.suffix in _TYPES)
    return {path.relative_to(FOLDER).as_posix(): path for path in found}


def site_routes(app: FastAPI) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(_described(app.openapi()))

    @routes.get("/{path:path}")
    async def page(path: str, request: Request) -> Response:
        if path.startswith(("api/", "assets/")) and path not in files():
            raise HTTPException(404, "there is nothing here")
        found = files().get(path) or files().get("index.html")
        if found is None:
            return HTMLResponse(_NOT_BUILT, 503)
        hashed = path.startswith("assets/")
        headers = {"Cache-Control": FOREVER if hashed else "no-cache"}
        return FileResponse(found, media_type=_TYPES[found.suffix], headers=headers)

    return routes


_NOT_BUILT = "<!doctype html><title>Shoal</title><p>The dashboard is not built: run make dashboard.</p>"


def _described(document: dict[str, object]) -> str:
    """Every operation in a line, without a script."""
    paths = document["paths"]
    assert isinstance(paths, dict)
    rows = [
        f"<tr><td><code>{method.upper()}</code><td><code>{html.escape(path)}</code>"
        f"<td>{html.escape(str(operation.get('summary', '')))}"
        f"<td>{html.escape(', '.join(operation.get('tags', [])))}</tr>"
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Shoal API</title><h1>Shoal API</h1>'
        '<p>The whole description, for tools: <a href="/openapi.json">openapi.json</a>. The dashboard: '
        '<a href="/">here</a>.</p>'
        f"<table><tr><th>method<th>path<th>what<th>scope</tr>{''.join(rows)}</table></html>"
    )
