"""The routes that ask for something: found, pause, stop, change, rewind, fund, let in, export, sample.

In flow requests with a token that allows it; out flow answers once the request has taken effect. Invariant: with less
than an admin token a recipe reads no file of this machine but uploads, and nothing that was trained is taken back.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from shoal.apps.api.checkpoints import export_zip, find_saved
from shoal.apps.api.desk import Desk
from shoal.apps.api.forms import check_recipe, recipe_forms
from shoal.apps.api.guard import require
from shoal.apps.api.inviting import invitation
from shoal.apps.api.models import (
    Banned,
    BanRequest,
    Changed,
    ChangeRequest,
    DatasetInfo,
    FundRequest,
    Invitation,
    PauseRequest,
    RecipeCheck,
    RecipeForms,
    RevokedAnswer,
    RevokeRequest,
    RewindRequest,
    RunSummary,
    SampleAnswer,
    SampleRequest,
    StopRequest,
    Submitted,
    TicketAnswer,
    TicketRequest,
    WhoAmI,
)
from shoal.apps.api.sampling import sample
from shoal.apps.api.tokens import Scope, Tokens
from shoal.apps.api.uploads import PREFIX, Uploads
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.changing import changeable
from shoal.strategy.recipe import recipe_from

MAX_AT = 1 << 53
RECIPE_BODY = {
    "requestBody": {
        "required": True,
        "description": "A recipe: YAML, or JSON.",
        "content": {
            "application/yaml": {
                "schema": {"type": "string"},
                "example": "name: digits\nmodel: {kind: mlp}\ndata: {source: digits}\nbudget: {rounds: 5}\n",
            }
        },
    }
}
_UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file's bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def asking(desk: Desk, tokens: Tokens, uploads: Uploads) -> APIRouter:
    routes = APIRouter()
    _recipes(routes, desk, tokens)
    _founding(routes, desk, tokens, uploads)
    _steering(routes, desk)
    _letting_in(routes, desk)
    return routes


def _recipes(routes: APIRouter, desk: Desk, tokens: Tokens) -> None:
    @routes.get("/recipes", summary="The recipe's schema, the presets and the recipes that ship")
    async def forms() -> RecipeForms:
        return recipe_forms()

    @routes.post(
        "/recipes/check",
        summary="What is wrong with a recipe, by field, or what it would take",
        openapi_extra=RECIPE_BODY,
    )
    async def check(request: Request, nodes: Annotated[int, Query(ge=1, le=10_000)] = 4) -> RecipeCheck:
        text = await _text(request)
        checked, _ = await desk.service.host.work(lambda: check_recipe(text, nodes))
        return checked

    del tokens


def _founding(routes: APIRouter, desk: Desk, tokens: Tokens, uploads: Uploads) -> None:
    scope_of = Depends(require(tokens, "operate"))

    @routes.post("/runs", status_code=201, summary="Submit a recipe", openapi_extra=RECIPE_BODY)
    async def submit(request: Request, scope: Scope = scope_of) -> Submitted:
        text = await _text(request)
        # The organiser's environment counts, which is the submitter's, not this process's.
        _, recipe = await desk.service.host.work(lambda: _checked(text))
        values = recipe.model_dump()
        if scope != "admin":
            _uploads_only(values)
        if _names_upload(values):
            recipe = await desk.service.host.work(lambda: recipe_from(uploads.resolved(values)))
        run, ticket = await desk.submit(recipe)
        return Submitted(run=run, name=recipe.name, ticket=ticket)

    @routes.post(
        "/datasets",
        status_code=201,
        summary="Send a dataset: text, JSONL, Parquet, NPZ, or images by a CSV",
        openapi_extra=_UPLOAD_BODY,
    )
    async def upload(
        request: Request,
        name: Annotated[
            str, Query(min_length=1, max_length=200, description="The file's name; its end says its kind.")
        ],
    ) -> DatasetInfo:
        return await uploads.receive(name, request.stream(), desk.service.host.work)


def _steering(routes: APIRouter, desk: Desk) -> None:
    def brief(run: RunId) -> RunSummary:
        return next(item for item in desk.summaries() if item.run == run)

    @routes.post("/runs/{run}/stop", summary="End a run; its last state is saved")
    async def stop(run: str, wish: StopRequest | None = None) -> RunSummary:
        name, _ = desk.find(run)
        await desk.stop(name, (wish or StopRequest()).reason)
        return brief(name)

    @routes.post("/runs/{run}/pause", summary="Give out no new work until the run is resumed")
    async def pause(run: str, wish: PauseRequest | None = None) -> RunSummary:
        name, _ = desk.find(run)
        await desk.pause(name, (wish or PauseRequest()).reason)
        return brief(name)

    @routes.post("/runs/{run}/resume", summary="Go on after a pause")
    async def resume(run: str) -> RunSummary:
        name, _ = desk.find(run)
        await desk.pause(name, None)
        return brief(name)

    @routes.get("/runs/{run}/parameters", summary="What may be changed while the run is on")
    async def parameters(run: str) -> Changed:
        name, served = desk.find(run)
        return Changed(run=name, parameters=changeable(served.machine.recipe))

    @routes.post("/runs/{run}/parameters", summary="Change some of them; the nodes connect again")
    async def change(run: str, wish: ChangeRequest) -> Changed:
        name, served = desk.find(run)
        await desk.change(name, wish.changes)
        return Changed(run=name, parameters=changeable(served.machine.recipe))

    @routes.post("/runs/{run}/fund", summary="Raise a run's budget of credit; a paused run goes on")
    async def fund(run: str, wish: FundRequest) -> RunSummary:
        name, _ = desk.find(run)
        await desk.fund(name, wish.add_micro, wish.reason)
        return brief(name)


def _letting_in(routes: APIRouter, desk: Desk) -> None:
    one_at_a_time = asyncio.Lock()

    @routes.post("/runs/{run}/tickets", status_code=201, summary="Another ticket to join with")
    async def ticket(run: str, wish: TicketRequest | None = None) -> TicketAnswer:
        name, _ = desk.find(run)
        asked = wish or TicketRequest()
        shown, token = await desk.ticket(name, asked.expires_s, asked.uses, asked.nodes)
        return TicketAnswer(run=name, ticket=shown, expires_ms=token.expires_ms)

    @routes.post(
        "/runs/{run}/bans", status_code=201, summary="Keep a node out for a while, or let it in again"
    )
    async def ban(run: str, wish: BanRequest) -> Banned:
        name, _ = desk.find(run)
        made = await desk.ban(name, wish.node, wish.seconds, wish.reason)
        return Banned(run=name, node=made.node, until_ms=made.until_ms, reason=made.reason)

    @routes.post("/runs/{run}/revocations", status_code=201, summary="Revoke a node's keys, for good")
    async def revoke(run: str, wish: RevokeRequest) -> RevokedAnswer:
        name, _ = desk.find(run)
        node = await desk.revoke(name, wish.node, wish.reason)
        return RevokedAnswer(run=name, node=node, reason=wish.reason)

    @routes.get(
        "/runs/{run}/invitation", summary="What a volunteer needs: the command, a QR code, and what it uses"
    )
    async def invite(run: str) -> Invitation:
        name, served = desk.find(run)
        return invitation(served, await desk.standing_ticket(name))

    @routes.get(
        "/runs/{run}/checkpoints/{at}/export",
        summary="A saved state as a model folder in a zip; -1 for the latest",
        response_class=FileResponse,
        responses={200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}},
    )
    async def export(run: str, at: int) -> FileResponse:
        served = desk.find(run)[1]
        saved = find_saved(served, at)
        async with one_at_a_time:
            path = await desk.service.host.work(lambda: export_zip(served, saved))
        name = f"shoal-{served.machine.run[:8]}-{saved.at}.zip"
        gone = BackgroundTask(path.unlink, missing_ok=True)
        return FileResponse(path, media_type="application/zip", filename=name, background=gone)

    @routes.post("/runs/{run}/samples", summary="Let the latest saved state write a few words")
    async def write(run: str, wish: SampleRequest | None = None) -> SampleAnswer:
        name, served = desk.find(run)
        asked, saved = wish or SampleRequest(), served.machine.view.best_start()
        async with one_at_a_time:
            text = await desk.service.host.work(lambda: sample(served, saved, asked.prompt, asked.tokens))
        return SampleAnswer(run=name, at=saved.at, prompt=asked.prompt, text=text)


def taking_back(desk: Desk) -> APIRouter:
    """What only the admin token allows."""
    routes = APIRouter()

    @routes.post("/runs/{run}/rewind", summary="Undo a stretch: go back to an earlier seal's state")
    async def rewind(run: str, wish: RewindRequest) -> RunSummary:
        name, _ = desk.find(run)
        await desk.rewind(name, wish.to, wish.reason)
        return next(item for item in desk.summaries() if item.run == name)

    return routes


def who_am_i(desk: Desk, tokens: Tokens, version: str) -> APIRouter:
    routes = APIRouter()
    scope_of = Depends(require(tokens, "view"))

    @routes.get("/whoami", summary="What the token allows")
    async def who(scope: Scope = scope_of) -> WhoAmI:
        return WhoAmI(scope=scope, version=version, coordinator=desk.service.identity.node)

    return routes


async def _text(request: Request) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError:
        raise ShoalError("SH-API-03", "the recipe is not UTF-8 text", "send YAML or JSON") from None


def _checked(text: str) -> tuple[None, Any]:
    from shoal.strategy.recipe import parse_recipe

    return None, parse_recipe(text, environment={})


def _names_upload(values: Any) -> bool:
    return any(isinstance(text, str) and text.startswith(PREFIX) for _, text in _texts(values))


def _uploads_only(values: dict[str, Any]) -> None:
    """Files of this machine are for its administrator. Raises SH-API-05."""
    for key, text in _texts(values):
        if key in ("path", "weights") and not text.startswith(PREFIX):
            raise ShoalError(
                "SH-API-05",
                f"the recipe names a file of the coordinator's: {text[:80]!r}",
                "upload the file and name it so, or use the admin token",
            )


def _texts(values: Any, key: str = "") -> list[tuple[str, str]]:
    """Every text in a recipe, with the name of its field."""
    if isinstance(values, dict):
        return [found for name, value in values.items() for found in _texts(value, name)]
    if isinstance(values, list | tuple):
        return [found for value in values for found in _texts(value, key)]
    return [(key, values)] if isinstance(values, str) else []
