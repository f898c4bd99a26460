"""Saved states for people: the graph of them, their bytes, and a folder that others load.

In flow a run in service; out flow records, blobs and zip archives. Invariant: a state leaves here only if its hash is
the one the log names.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from shoal.apps.api.chronicle import Chronicle
from shoal.apps.api.records import CheckpointGraph, CheckpointRecord
from shoal.apps.exporting import checked_state
from shoal.base.errors import ShoalError
from shoal.coordinator.served import Run
from shoal.replica.state import State
from shoal.runlog.entries import Genesis
from shoal.runlog.view import SavedState
from shoal.training.export import export_huggingface


def graph(served: Run, chronicle: Chronicle) -> CheckpointGraph:
    records = [
        record.model_copy(update={"here": served.blobs.has(saved.blob)})
        for record in chronicle.checkpoints
        if (saved := _saved(served, record)) is not None
    ]
    return CheckpointGraph(run=served.machine.run, checkpoints=records, rewinds=list(chronicle.rewinds))


def _saved(served: Run, record: CheckpointRecord) -> SavedState | None:
    return next(
        (s for s in served.machine.view.snapshots if (s.at, s.state) == (record.at, record.state)), None
    )


def find_saved(served: Run, at: int) -> SavedState:
    """The saved state at this position; -1 for the latest that stands. Raises SH-BLOB-01."""
    view = served.machine.view
    if at == -1:
        return view.best_start()
    for saved in reversed(view.snapshots):
        if saved.at == at:
            return saved
    raise ShoalError(
        "SH-BLOB-01", f"no state is saved at {at}", "see which are: /api/v1/runs/RUN/checkpoints"
    )


def load_state(served: Run, saved: SavedState) -> tuple[State, Genesis]:
    """The state itself. Blocks. Raises SH-BLOB-01 or SH-LOG-05."""
    genesis = served.machine.view.genesis
    assert genesis is not None
    if not served.blobs.has(saved.blob):
        raise ShoalError("SH-BLOB-01", f"the state at {saved.at} is not kept any more", "take a later one")
    return checked_state(served.blobs.get(saved.blob), genesis, saved), genesis


def export_zip(served: Run, saved: SavedState) -> Path:
    """The state as a model folder in a zip, in a file that the caller removes. Blocks."""
    state, genesis = load_state(served, saved)
    tokenizer = served.blobs.get(genesis.manifest.tokenizer) if genesis.manifest.tokenizer else None
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        root = Path(folder) / "model"
        export_huggingface(served.machine.recipe.model, genesis.manifest, state.params, tokenizer, root)
        with tempfile.NamedTemporaryFile(prefix="shoal-export-", suffix=".zip", delete=False) as target:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
                for file in sorted(path for path in root.rglob("*") if path.is_file()):
                    archive.write(file, file.relative_to(root))
            return Path(target.name)
