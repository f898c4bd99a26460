"""Retention at work: what the rules keep goes into the archive of chunks before its blob may be pruned.

In flow a run as its log tells it, its blobs and its rules; out flow snapshots in the archive, and others let go.
Invariant: a snapshot that a rule or a pin keeps is in the blobs or in the archive at every moment.
"""

from __future__ import annotations

import contextlib

from shoal.base.errors import ShoalError
from shoal.checkpoint.archive import ChunkArchive
from shoal.checkpoint.retention import kept_blobs
from shoal.replica.blobs import BlobStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Retention


def retain(view: RunView, blobs: BlobStore, rules: Retention) -> int:
    """Archive what is to be kept and not needed for joiners any more; how many bytes were new."""
    genesis = view.genesis
    if genesis is None:
        return 0
    archive = ChunkArchive(blobs.disk)
    wanted = kept_blobs(view, rules) | archive.pinned()
    live = {saved.blob for saved in view.kept_states()}
    new_bytes = 0
    for blob in sorted(wanted - live):
        # One that rotted is set aside by reading it, and may still be rebuilt from an earlier state.
        with contextlib.suppress(FileNotFoundError, ShoalError):
            if not archive.has(blob):
                new_bytes += archive.add(blob, blobs.get(blob), genesis.layout).new_bytes
    archive.keep_only(wanted)
    return new_bytes
