"""Whether a log holds, and whether the model it leads to is the one that was attested.

In flow a log and its blobs as they lie on disk; out flow what was checked, or the first thing that is wrong, by
name. Invariant: everything is recomputed from bytes; nothing that was written down is taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.apps.logs_reading import FoundLog
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.base.logstore import MEND_STORE
from shoal.data.manifest import blobs as data_blobs
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.sharded import fold_stored
from shoal.replica.state import decode_state, state_hash
from shoal.runlog.chain import read_link
from shoal.runlog.evidence import MAX_PROOF_BYTES, read_proof
from shoal.runlog.view import RunView, SavedState, Step, verify_log
from shoal.strategy.recipe import recipe_in_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    run: RunId
    entries: int
    head: str
    blobs: int


def verify_run(log: FoundLog) -> Verified:
    """Check all of it. Raises SH-LOG-01, SH-BLOB-01 or SH-BLOB-02 with the first thing that is wrong."""
    view = verified_view(log)
    return Verified(run=log.run, entries=view.length, head=view.head.hash, blobs=_check_blobs(log, view))


def verified_view(log: FoundLog) -> RunView:
    """What the log says, having checked every entry. Raises SH-LOG-01."""
    view, finding = verify_log(tracked(log.entries, "entries"), log.run)
    if finding is not None:
        raise broken(log, f"entry {finding.position} {finding.what}")
    if log.complaints:
        raise broken(log, log.complaints[0])
    if view.genesis is None:
        raise broken(log, "entry 0 is missing: the log is empty")
    return view


def _check_blobs(log: FoundLog, view: RunView) -> int:
    """Every blob that is stored here must be what its name says: those of old rounds too, which a replay needs."""
    for blob in log.blobs.damaged(tracked(log.blobs.stored(), "blobs")):
        raise ShoalError(
            "SH-BLOB-02",
            f"run {log.run[:12]}: the file blobs/{blob} does not have the content its name says",
            "remove the file: a node fetches it again; a coordinator needs it from a copy or from its nodes",
        )
    if log.complete:
        _check_complete(log, view)
    return sum(1 for blob in view.needed_blobs() if log.blobs.has(blob))


def _check_complete(log: FoundLog, view: RunView) -> None:
    assert view.genesis is not None
    for blob in (*data_blobs(view.genesis.manifest), view.best_start().blob):
        if not log.blobs.has(blob):
            raise ShoalError(
                "SH-BLOB-01",
                f"run {log.run[:12]}: the file blobs/{blob}, which joiners need, is missing",
                "restore it from a copy, or start the coordinator while nodes that have it are on",
            )


def broken(log: FoundLog, what: str) -> ShoalError:
    return ShoalError(
        "SH-LOG-01",
        f"run {log.run[:12]}: {what}",
        f"{MEND_STORE}; a node's copy mends itself when it joins again",
    )


def proven_position(log: FoundLog, path: Path) -> int | None:
    """The position for which a proof shows two entries that the coordinator of this log signed, or None if it shows
    nothing. Raises SH-LOG-01 if the log, which names the coordinator, does not hold itself."""
    keys = verified_view(log).coordinator_keys
    with open(path, "rb") as file:
        encoded = file.read(MAX_PROOF_BYTES + 1)
    proof = read_proof(encoded, log.run, *keys)
    return read_link(proof.first).entry.position if proof else None


# --- replay --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    round: int
    position: int
    state: str
    attested: int
    """How many nodes attested exactly this state there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    run: RunId
    begun_at: int
    rounds: int
    at: int
    state: str
    attested: int


def replay_run(log: FoundLog, on_step: Callable[[Progress], None]) -> Replayed:
    """Fold every standing seal from the earliest state that is stored, comparing at each position.

    Raises SH-LOG-01, SH-BLOB-01 or -02, or SH-LOG-05 at the first position that differs.
    """
    view = verified_view(log)
    assert view.genesis is not None
    rules = recipe_in_log(view.genesis.recipe).strategy.fold_rules()
    saved, steps = _earliest(log.blobs, view)
    state = decode_state(read_blob(log.blobs, saved.blob), view.genesis.layout)
    hashed = state_hash(state)
    attested = _compare(view, saved.at, hashed)
    for step in tracked(steps, "rounds"):
        state = fold_stored(state, step, partial(read_blob, log.blobs), rules)
        hashed = state_hash(state)
        attested = _compare(view, step.position, hashed)
        on_step(Progress(round=step.round, position=step.position, state=hashed, attested=attested))
    return Replayed(
        run=log.run,
        begun_at=saved.at,
        rounds=len(steps),
        at=steps[-1].position if steps else saved.at,
        state=hashed,
        attested=attested,
    )


def _earliest(blobs: BlobStore, view: RunView) -> tuple[SavedState, list[Step]]:
    """The first saved state from which every later update is stored too."""
    missing: BlobId | None = None
    for saved in view.snapshots:
        if not view.stands(saved.at):
            continue
        steps = [step for step in view.path if step.position > saved.at and step.settled]
        wanted = [saved.blob, *(blob for step in steps for blob, _, _ in step.sources)]
        gone = [blob for blob in wanted if not blobs.has(blob)]
        if not gone:
            return saved, steps
        missing = gone[0]
    raise ShoalError(
        "SH-BLOB-01",
        f"no stored state has every update after it: blob {missing} is missing",
        "replay where the run's blobs are: with the coordinator, or with a node that took part to the end",
    )


def read_blob(blobs: BlobStore, blob: BlobId) -> bytes:
    data = blobs.read(blob, 0, blobs.size(blob) or 0) or b""
    if chunk_list(data).blob != blob:
        raise ShoalError(
            "SH-BLOB-02",
            f"the file blobs/{blob} does not have the content its name says",
            "remove it and restore it from a copy, or replay elsewhere",
        )
    return data


def _compare(view: RunView, position: int, hashed: str) -> int:
    """How many attested this state here. Raises SH-LOG-05 if the log's word is another."""
    words = [word.state for _, word in sorted(view.attested.get(position, {}).items())]
    saved = [s.state for s in view.snapshots if s.at == position]
    counts = {state: words.count(state) for state in words}
    majority = max(sorted(counts), key=lambda state: counts[state], default=None)
    for expected in [*saved, *([majority] if majority else [])]:
        if expected != hashed:
            raise ShoalError(
                "SH-LOG-05",
                f"at position {position} the log gives state {hashed}, and {expected} was attested",
                "run `shoal log verify`; if the log holds, report this with the recipe and the versions in use",
            )
    return words.count(hashed)
