"""Bit rot found before anybody needs the blob: stored blobs are read again, one at a time, and mended from peers.

In flow a store, what the log needs, and a way to fetch; out flow blobs that are whole. Invariant: a rotten file is set
aside before a sound one is fetched, and reading never takes more than a small share of the disk's time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from shoal.base.errors import ShoalError
from shoal.base.host import Host
from shoal.base.ids import BlobId
from shoal.replica.blobs import BlobStore

log = logging.getLogger(__name__)

PAUSE_S, REST_S = 0.05, 2.0
"""Between two blobs at least, a large one being followed by a longer pause; and after all of them."""
BYTES_S = 20_000_000
"""What is read in a second, on average, at most."""
ABSENCES = 3
"""A blob that was never here may be on its way: it is asked for when it was missing so often in a row."""


async def scrub(
    host: Host,
    blobs: BlobStore,
    needed: Callable[[], Iterable[BlobId]],
    bring: Callable[[BlobId], Awaitable[bool]],
) -> None:
    """Check what the log needs, round and round, until cancelled."""
    missing: dict[BlobId, int] = {}
    while True:
        for blob in sorted(needed()):
            size = blobs.size(blob)
            if size is not None:
                missing.pop(blob, None)
                await _check(host, blobs, blob)
            if blobs.size(blob) is None:
                missing[blob] = ABSENCES if size is not None else missing.get(blob, 0) + 1
                if missing[blob] >= ABSENCES and await bring(blob):
                    log.info("blob_mended", extra={"blob": blob[:16]})
            await host.clock.sleep(max(PAUSE_S, (size or 0) / BYTES_S))
        await host.clock.sleep(REST_S)


async def _check(host: Host, blobs: BlobStore, blob: BlobId) -> None:
    with contextlib.suppress(ShoalError, FileNotFoundError):  # The store has said what is wrong.
        await host.work(partial(blobs.get, blob))
