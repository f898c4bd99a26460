"""The application: every route with what it needs, and what every answer carries.

In flow HTTP requests and WebSockets; out flow answers as in `models` and `records`, problems, and the dashboard's
files. Invariant: every route below /api needs a token of its scope; tensors pass here only when a saved state is
taken out.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Response

from shoal import __version__
from shoal.apps.api.asking import asking, taking_back, who_am_i
from shoal.apps.api.desk import Desk
from shoal.apps.api.examples import with_examples
from shoal.apps.api.guard import BoundedBodies, require, require_view_or_loopback
from shoal.apps.api.headers import SecureHeaders, Tags
from shoal.apps.api.live import Live
from shoal.apps.api.metrics import exposition, with_nodes
from shoal.apps.api.models import Health, Problem
from shoal.apps.api.pooling import lending, pooled
from shoal.apps.api.problems import MEDIA_TYPE, install
from shoal.apps.api.reading import reading
from shoal.apps.api.site import site_routes
from shoal.apps.api.tokens import Scope, Tokens
from shoal.apps.api.uploads import Uploads
from shoal.apps.api.watching import live_routes

_problems = {
    "model": Problem,
    "description": "A problem, with our code and what to do next.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def make_app(desk: Desk, tokens: Tokens, uploads: Uploads) -> FastAPI:
    """The API over one coordinator, guarded by `tokens`."""
    app = FastAPI(
        title="Shoal coordinator",
        version=__version__,
        description="Runs, their state, their log. Training traffic never passes here.",
        responses={"4XX": _problems, "5XX": _problems},
        docs_url=None,
        redoc_url=None,
    )
    for middleware in (Tags, BoundedBodies, SecureHeaders):
        app.add_middleware(middleware)
    install(app)
    live = Live(desk)
    desk.diaries.after.append(live.look)
    app.include_router(_open_routes(desk, tokens, live))
    parts: tuple[tuple[Scope, APIRouter], ...] = (
        ("lend", lending(desk)),
        ("view", pooled(desk)),
        ("view", reading(desk, live)),
        ("view", who_am_i(desk, tokens, __version__)),
        ("operate", asking(desk, tokens, uploads)),
        ("admin", taking_back(desk)),
    )
    for scope, routes in parts:
        guarded = [Depends(require(tokens, scope))]
        app.include_router(routes, prefix="/api/v1", dependencies=guarded, tags=[scope])
    app.include_router(live_routes(live, tokens))
    _with_examples(app)
    app.include_router(site_routes(app))
    return app


def _with_examples(app: FastAPI) -> None:
    make = app.openapi

    def described() -> dict[str, Any]:
        return with_examples(make())

    app.openapi = described  # type: ignore[method-assign]


def _open_routes(desk: Desk, tokens: Tokens, live: Live) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="Is the coordinator up?")
    async def healthz() -> Health:
        service = desk.service
        return Health(
            ok=service.ready.is_set(),
            coordinator=service.identity.node,
            version=__version__,
            runs=len(service.runs),
        )

    @routes.get(
        "/metrics",
        summary="Numbers for Prometheus; no token is needed from this machine",
        dependencies=[Depends(require_view_or_loopback(tokens))],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        names = sorted(desk.service.runs)
        runs = [(desk.status(run, rounds=1, with_nodes=False), live.nodes(run)) for run in names]
        # Thousands of nodes are a hundred thousand lines: others are answered meanwhile.
        text = await desk.service.host.work(lambda: exposition([with_nodes(*one) for one in runs]))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes
