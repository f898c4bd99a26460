"""The routes.

In flow HTTP requests; out flow answers as in `models`, or problems. Invariant: every route below /api needs
the admin token; tensors pass here only when a finished model is exported.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse

from shoal import __version__
from shoal.apps.api.desk import Desk
from shoal.apps.api.guard import BoundedBodies, require_token, require_token_or_loopback
from shoal.apps.api.metrics import exposition
from shoal.apps.api.models import (
    Health,
    LogItem,
    LogPage,
    Problem,
    RewindRequest,
    RunStatus,
    RunSummary,
    StopRequest,
    Submitted,
    TicketAnswer,
    TicketRequest,
)
from shoal.apps.api.problems import MEDIA_TYPE, install
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.coordinator.service import Run
from shoal.runlog.chain import BadEntry, read_link
from shoal.strategy.recipe import parse_recipe

PIECE_BYTES = 1 << 20
MAX_PAGE = 256
_problems = {
    "model": Problem,
    "description": "A problem, with our code and what to do next.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_recipe_body = {
    "requestBody": {
        "required": True,
        "description": "A recipe: YAML, or JSON.",
        "content": {"application/yaml": {"schema": {"type": "string"}}},
    }
}


def make_app(desk: Desk, token: str) -> FastAPI:
    """The API over one coordinator, guarded by `token`."""
    app = FastAPI(
        title="Shoal coordinator",
        version=__version__,
        description="Runs, their state, their log. Training traffic never passes here.",
        responses={"4XX": _problems, "5XX": _problems},
    )
    app.add_middleware(BoundedBodies)
    install(app)
    app.include_router(_open_routes(desk, token))
    guarded = [Depends(require_token(token))]
    app.include_router(_reading(desk), prefix="/api/v1", dependencies=guarded, tags=["runs"])
    app.include_router(_asking(desk), prefix="/api/v1", dependencies=guarded, tags=["runs"])
    return app


def _open_routes(desk: Desk, token: str) -> APIRouter:
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
        dependencies=[Depends(require_token_or_loopback(token))],
        response_class=Response,
    )
    async def metrics() -> Response:
        runs = [desk.status(run, rounds=1) for run in sorted(desk.service.runs)]
        return Response(exposition(runs), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _reading(desk: Desk) -> APIRouter:
    routes = APIRouter()

    @routes.get("/runs", summary="Every run, in brief")
    async def list_runs() -> list[RunSummary]:
        return desk.summaries()

    @routes.get("/runs/{run}", summary="One run, with its nodes and losses")
    async def show_run(run: str, rounds: Annotated[int, Query(ge=1, le=100_000)] = 1000) -> RunStatus:
        return desk.status(desk.find(run)[0], rounds)

    @routes.get("/runs/{run}/log", summary="Entries of the log, in order")
    async def read_log(
        run: str,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> LogPage:
        name, served = desk.find(run)
        store = desk.service.store
        entries = await desk.service.host.work(lambda: list(store.read(name, start, start + limit)))
        items = [_log_item(entry) for entry in entries]
        return LogPage(run=name, length=served.machine.view.length, items=items)

    @routes.get(
        "/runs/{run}/snapshots/latest",
        summary="The latest saved state, as a blob; the log holds its hash",
        response_class=StreamingResponse,
    )
    async def latest_snapshot(run: str) -> StreamingResponse:
        served = desk.find(run)[1]
        saved = served.machine.view.best_start()
        marks = {"Shoal-At": str(saved.at), "Shoal-State": saved.state}
        return _blob_answer(desk, served, saved.blob, marks)

    @routes.get(
        "/runs/{run}/tokenizer",
        summary="The run's tokeniser, as a blob; 404 where its data is not text",
        response_class=StreamingResponse,
    )
    async def tokenizer(run: str) -> StreamingResponse:
        served = desk.find(run)[1]
        genesis = served.machine.view.genesis
        blob = genesis.manifest.tokenizer if genesis else None
        if blob is None:
            raise ShoalError("SH-BLOB-01", "this run has no tokeniser", "its data is not text")
        return _blob_answer(desk, served, blob, {})

    return routes


def _asking(desk: Desk) -> APIRouter:
    routes = APIRouter()

    @routes.post("/runs", status_code=201, summary="Submit a recipe", openapi_extra=_recipe_body)
    async def submit(request: Request) -> Submitted:
        try:
            text = (await request.body()).decode()
        except UnicodeDecodeError:
            raise ShoalError("SH-API-03", "the recipe is not UTF-8 text", "send YAML or JSON") from None
        # The organiser's environment counts, which is the submitter's, not this process's.
        recipe = await desk.service.host.work(lambda: parse_recipe(text, environment={}))
        run, ticket = await desk.submit(recipe)
        return Submitted(run=run, name=recipe.name, ticket=ticket)

    @routes.post("/runs/{run}/stop", summary="End a run; its last state is saved")
    async def stop(run: str, wish: StopRequest | None = None) -> RunSummary:
        name, _ = desk.find(run)
        await desk.stop(name, (wish or StopRequest()).reason)
        return next(item for item in desk.summaries() if item.run == name)

    @routes.post("/runs/{run}/rewind", summary="Undo a stretch: go back to an earlier seal's state")
    async def rewind(run: str, wish: RewindRequest) -> RunSummary:
        name, _ = desk.find(run)
        await desk.rewind(name, wish.to, wish.reason)
        return next(item for item in desk.summaries() if item.run == name)

    @routes.post("/runs/{run}/tickets", status_code=201, summary="Another ticket to join with")
    async def ticket(run: str, wish: TicketRequest | None = None) -> TicketAnswer:
        name, _ = desk.find(run)
        shown, token = await desk.ticket(name, (wish or TicketRequest()).expires_s)
        return TicketAnswer(run=name, ticket=shown, expires_ms=token.expires_ms)

    return routes


def _log_item(encoded: bytes) -> LogItem:
    try:
        link = read_link(encoded)
    except BadEntry as error:
        raise ShoalError("SH-LOG-01", f"an entry {error}", "run: shoal log verify") from None
    body = msgspec.to_builtins(link.entry.body)
    return LogItem(
        position=link.entry.position,
        kind=body.pop("type"),
        hash=link.hash,
        previous=link.entry.previous,
        term=link.entry.term,
        time_ms=link.entry.time_ms,
        body=body,
        encoded=base64.b64encode(encoded).decode(),
    )


def _blob_answer(desk: Desk, served: Run, blob: BlobId, marks: dict[str, str]) -> StreamingResponse:
    size = served.blobs.size(blob)
    if size is None:
        raise ShoalError("SH-BLOB-01", f"blob {blob[:16]} is not here", "fetch it from a node: shoal join")
    headers = {"Content-Length": str(size), "Shoal-Blob": blob, **marks}
    return StreamingResponse(
        _pieces(desk, served, blob, size), headers=headers, media_type="application/octet-stream"
    )


async def _pieces(desk: Desk, served: Run, blob: BlobId, size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, PIECE_BYTES):
        stop = min(size, start + PIECE_BYTES)
        piece = await desk.service.host.work(
            lambda start=start, stop=stop: served.blobs.read(blob, start, stop)  # type: ignore[misc]
        )
        if not piece:
            return  # Pruned or cut meanwhile; the length will not fit, and the receiver notices.
        yield piece
