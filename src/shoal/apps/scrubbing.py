"""Who is scrubbed: the blobs of every run a coordinator serves, and those of a node at work.

In flow a service; out flow whole blobs, mended from the run's members. Invariant: what was pruned on purpose is not
brought back: only what the log still needs is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.scrubbing import REST_S, scrub

if TYPE_CHECKING:  # A node starts the sooner for not loading a coordinator.
    from shoal.coordinator.served import Run
    from shoal.coordinator.service import CoordinatorService
    from shoal.node.service import NodeService


async def scrub_coordinator(service: CoordinatorService) -> None:
    """Every run in service, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        known: dict[RunId, asyncio.Task[None]] = {}
        while True:
            for run in [run for run in known if run not in service.runs]:
                known.pop(run).cancel()
            for run, served in service.runs.items():
                if run not in known:
                    known[run] = tasks.create_task(_scrub_run(service, run, served), name=f"scrub {run[:8]}")
            await service.host.clock.sleep(REST_S)


async def _scrub_run(service: CoordinatorService, run: RunId, served: Run) -> None:
    from shoal.coordinator.copies import lasting_blobs

    sizes: dict[BlobId, tuple[int | None, tuple[NodeId, ...]]] = {}

    def needed() -> set[BlobId]:
        sizes.update({blob: (size, holders) for blob, size, holders in lasting_blobs(served.machine.view)})
        stored = {blob for blob in served.machine.needed_blobs() if served.blobs.has(blob)}
        return stored | {blob for blob, _, _ in lasting_blobs(served.machine.view)}

    async def bring(blob: BlobId) -> bool:
        size, holders = sizes.get(blob, (None, ()))
        return run in service.runs and await service.supplies.bring(run, blob, size, holders)

    await scrub(service.host, served.blobs, needed, bring)


async def scrub_node(service: NodeService) -> None:
    """What this node holds of what the log needs, until cancelled."""

    def needed() -> set[BlobId]:
        if service.machine.view.genesis is None:
            return set()  # Nothing is known yet of what the run needs.
        return {blob for blob in service.machine.needed_blobs() if service.blobs.has(blob)}

    async def bring(blob: BlobId) -> bool:
        await service.bring(blob)
        return service.blobs.has(blob)

    await scrub(service.host, service.blobs, needed, bring)
