"""The graph of all checkpoints, over all runs of a coordinator: forks, merges, quorums, and a picture.

In flow the store's logs; out flow the graph's JSON and an SVG. Invariant: it is read from the logs alone, and read
again only when one of them has grown.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from shoal.apps.api.desk import Desk
from shoal.apps.api.records import CheckpointDag
from shoal.checkpoint.archive import ChunkArchive
from shoal.checkpoint.dag import Dag, as_json
from shoal.checkpoint.library import Library
from shoal.checkpoint.picture import as_svg


class Branches:
    """One coordinator's graph, as it was when last asked for."""

    def __init__(self, desk: Desk) -> None:
        self._store = desk.service.store
        self._library = Library(self._store, desk.service.blob_store)
        self._read: tuple[tuple[tuple[str, int], ...], Dag] = ((), Dag(()))

    def dag(self) -> Dag:
        """Blocks. Raises SH-LOG-01 where a log does not hold."""
        lengths = tuple((run, self._store.length(run)) for run in self._store.runs())
        if lengths != self._read[0]:
            self._read = (lengths, self._library.dag())
        return self._read[1]

    def graph(self) -> dict[str, Any]:
        """Blocks."""
        dag, library = self.dag(), self._library
        pins = {
            run: ChunkArchive(library.room_of(run).disk).pinned() for run in {v.run for v in dag.vertices}
        }
        stored = {vertex.id: library.stored(vertex) for vertex in dag.vertices}
        pinned = [vertex.id for vertex in dag.vertices if vertex.snapshot in pins[vertex.run]]
        return as_json(dag, stored=stored, pinned=pinned)

    def picture(self) -> str:
        return as_svg(self.dag())


def branch_routes(desk: Desk) -> APIRouter:
    routes, branches = APIRouter(), Branches(desk)

    @routes.get("/checkpoints", summary="The checkpoints of all runs, as a graph with forks and merges")
    async def read_dag() -> CheckpointDag:
        return CheckpointDag(**await desk.service.host.work(branches.graph))

    @routes.get(
        "/checkpoints/picture",
        summary="The same as a picture",
        response_class=Response,
        responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
    )
    async def draw_dag() -> Response:
        drawn = await desk.service.host.work(branches.picture)
        return Response(drawn, media_type="image/svg+xml")

    return routes
