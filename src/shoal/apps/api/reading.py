"""The routes that only read: runs, rounds, nodes, events, checkpoints, credit, the log.

In flow GET requests with a view token; out flow answers as in `models` and `records`. Invariant: nothing here changes
anything; lists are bounded, and a page says how the next one is asked for.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from itertools import islice
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from shoal.apps.api.branches import branch_routes
from shoal.apps.api.checkpoints import find_saved, graph
from shoal.apps.api.desk import Desk
from shoal.apps.api.earnings import Earnings
from shoal.apps.api.live import Live
from shoal.apps.api.models import LogItem, LogPage, RunStatus, RunSummary
from shoal.apps.api.records import (
    CheckpointGraph,
    CreditPage,
    EventPage,
    EventRecord,
    Level,
    LinksPage,
    NodePage,
    RegionRecord,
    RoundPage,
)
from shoal.apps.api.settlements import settlement
from shoal.apps.api.status import regions_of
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.coordinator.served import Run
from shoal.runlog.chain import BadEntry, read_link

PIECE_BYTES = 1 << 20
MAX_PAGE, MAX_ROUNDS, MAX_EVENTS, MAX_AT = 256, 2_000, 500, 1 << 53
MAX_LINKED = 64
Position = Annotated[int, Query(ge=0, le=MAX_AT)]


def reading(desk: Desk, live: Live) -> APIRouter:
    routes = APIRouter()
    _runs(routes, desk, live)
    _past(routes, desk)
    _nodes(routes, desk, live)
    _blobs(routes, desk)
    routes.include_router(branch_routes(desk))
    return routes


def _runs(routes: APIRouter, desk: Desk, live: Live) -> None:
    @routes.get("/runs", summary="Every run, in brief")
    async def list_runs() -> list[RunSummary]:
        if not desk.service.runs:  # Who is only told that there are none would look for what is lost.
            desk.refer("")
        return desk.summaries()

    @routes.get("/runs/{run}", summary="One run, with its nodes and losses", response_model=RunStatus)
    async def show_run(run: str, rounds: Annotated[int, Query(ge=1, le=100_000)] = 1000) -> Response:
        # Its nodes may be thousands, and are kept as JSON: nothing is made of them that is thrown away.
        return Response(live.status(desk.find(run)[0], rounds), media_type="application/json")

    @routes.get("/runs/{run}/log", summary="Entries of the log, in order")
    async def read_log(
        run: str,
        start: Position = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> LogPage:
        name, served = desk.find(run)
        store = desk.service.store
        entries = await desk.service.host.work(lambda: list(store.read(name, start, start + limit)))
        items = [_log_item(entry) for entry in entries]
        return LogPage(run=name, length=served.machine.view.length, items=items)


def _past(routes: APIRouter, desk: Desk) -> None:
    @routes.get("/runs/{run}/rounds", summary="Rounds: who was in, late or rejected, and why")
    async def read_rounds(
        run: str,
        start: Position = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ROUNDS)] = 500,
    ) -> RoundPage:
        name, _ = desk.find(run)
        rounds = desk.diaries.of(name).chronicle.rounds
        return RoundPage(run=name, total=len(rounds), items=rounds.between(start, start + limit))

    @routes.get("/runs/{run}/events", summary="What happened, newest first")
    async def read_events(
        run: str,
        kind: Annotated[str | None, Query(max_length=40, description="One kind only.")] = None,
        level: Annotated[Level | None, Query(description="One level only.")] = None,
        node: Annotated[str | None, Query(max_length=64, description="About this node only.")] = None,
        text: Annotated[str | None, Query(max_length=100, description="With this in its words.")] = None,
        before: Annotated[int | None, Query(ge=1, le=MAX_AT, description="Older than this id.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 100,
    ) -> EventPage:
        name, _ = desk.find(run)
        sought = (text or "").casefold()
        events = desk.diaries.of(name).chronicle.events.newest_first()

        def search() -> list[EventRecord]:
            return [
                event
                for event in events
                if (kind is None or event.kind == kind)
                and (level is None or event.level == level)
                and (node is None or event.node == node)
                and (not sought or sought in f"{event.text} {event.reason}".casefold())
            ]

        found = await desk.service.host.work(search)  # Old ones are unpacked for it, which takes a while.
        older = [event for event in found if before is None or event.id < before]
        following = older[limit - 1].id if len(older) > limit else None
        return EventPage(run=name, total=len(found), next=following, items=older[:limit])

    @routes.get("/runs/{run}/checkpoints", summary="Saved states and rewinds, as a graph")
    async def read_checkpoints(run: str) -> CheckpointGraph:
        name, served = desk.find(run)
        chronicle = desk.diaries.of(name).chronicle
        return graph(served, chronicle)

    books: dict[RunId, Earnings] = {}

    @routes.get("/runs/{run}/credit", summary="Who earned what")
    async def read_credit(run: str) -> CreditPage:
        name, served = desk.find(run)
        book = books.setdefault(name, Earnings(name, desk.service.identity.public))
        store = desk.service.store
        await desk.service.host.work(lambda: book.catch_up(store))
        settled = await desk.service.host.work(lambda: settlement(desk.root, store, name))
        names = {node: member.name for node, member in served.machine.view.members.items()}
        return book.page(served.machine, names).model_copy(update={"settlement": settled})


def _nodes(routes: APIRouter, desk: Desk, live: Live) -> None:
    @routes.get("/runs/{run}/links", summary="Round trips between live nodes, and the regions that they make")
    async def read_links(run: str) -> LinksPage:
        name, served = desk.find(run)
        machine, now = served.machine, desk.service.host.clock.now()
        nodes = sorted(machine.seats.live(now))[:MAX_LINKED]
        known = [
            [machine.telemetry.rtt_s(one, two) if one != two else None for two in nodes] for one in nodes
        ]
        return LinksPage(
            run=name,
            nodes=list(nodes),
            rtt_ms=[[None if rtt_s is None else rtt_s * 1000 for rtt_s in row] for row in known],
            regions=[RegionRecord(**region.model_dump()) for region in regions_of(machine, now)],
        )

    @routes.get("/runs/{run}/nodes/{node}", summary="One node and its history")
    async def read_node(run: str, node: str) -> NodePage:
        name, served = desk.find(run)
        if node not in served.machine.view.members:
            raise ShoalError(
                "SH-API-02", f"the run has no node {node[:64]!r}", "see which there are: shoal run show"
            )
        chronicle, who, work = desk.diaries.of(name).chronicle, NodeId(node), desk.service.host.work
        rounds, events = chronicle.rounds.newest_first(), chronicle.events.newest_first()
        fates = await work(lambda: chronicle.fates(who, rounds))
        told = await work(lambda: list(islice((e for e in events if e.node == node), MAX_EVENTS)))
        return NodePage(
            run=name,
            node=desk.node(name, who).model_dump(),
            contribution=chronicle.contribution(who),
            fates=fates,
            trail=live.trail(name, who),
            events=told,
        )


def _blobs(routes: APIRouter, desk: Desk) -> None:
    @routes.get(
        "/runs/{run}/snapshots/latest",
        summary="The latest saved state, as a blob; the log holds its hash",
        response_class=StreamingResponse,
        responses=BYTES,
    )
    async def latest_snapshot(run: str) -> StreamingResponse:
        served = desk.find(run)[1]
        saved = served.machine.view.best_start()
        marks = {"Shoal-At": str(saved.at), "Shoal-State": saved.state}
        return blob_answer(desk, served, saved.blob, marks)

    @routes.get(
        "/runs/{run}/checkpoints/{at}/download",
        summary="A saved state, as a blob",
        response_class=StreamingResponse,
        responses=BYTES,
    )
    async def download(run: str, at: int) -> StreamingResponse:
        served = desk.find(run)[1]
        saved = find_saved(served, at)
        name = f'attachment; filename="shoal-{served.machine.run[:8]}-{saved.at}.state"'
        return blob_answer(
            desk, served, saved.blob, {"Shoal-State": saved.state, "Content-Disposition": name}
        )

    @routes.get(
        "/runs/{run}/tokenizer",
        summary="The run's tokeniser, as a blob; 404 where its data is not text",
        response_class=StreamingResponse,
        responses=BYTES,
    )
    async def tokenizer(run: str) -> StreamingResponse:
        served = desk.find(run)[1]
        genesis = served.machine.view.genesis
        blob = genesis.manifest.tokenizer if genesis else None
        if blob is None:
            raise ShoalError("SH-BLOB-01", "this run has no tokeniser", "its data is not text")
        return blob_answer(desk, served, blob, {})


BYTES: dict[int | str, dict[str, object]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


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


def blob_answer(desk: Desk, served: Run, blob: BlobId, marks: dict[str, str]) -> StreamingResponse:
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
