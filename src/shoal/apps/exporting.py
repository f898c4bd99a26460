"""From a run at a coordinator, perhaps another machine's, to a model folder here.

In flow the run's log and its latest saved state; out flows a folder that says how to load it. Invariant: nothing is
written unless the whole log holds and the state's hash is the one the log names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.apps.api.client import ApiClient
from shoal.apps.printable import printable
from shoal.apps.progress import Bar, tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.replica.blobs import chunk_list
from shoal.replica.state import State, decode_state, state_hash
from shoal.runlog.entries import Genesis
from shoal.runlog.view import RunView, SavedState, verify_log
from shoal.strategy.recipe import recipe_in_log
from shoal.training.export import export_huggingface
from shoal.training.spec import GptSpec, TransformersSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    run: str
    name: str
    folder: str
    at: int
    state: str
    rounds: int
    """Rounds that led to the exported state."""
    rounds_sealed: int
    final: bool
    loads_with: str
    """The package that loads the folder: "transformers" for language models, "shoal" for all others."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def export_run(api: ApiClient, run: str, folder: Path) -> Exported:
    """Export the run's latest saved state. Raises SH-LOG-01, SH-LOG-05 or SH-BLOB-02 if something is off."""
    with Bar() as bar:  # The state before the log, which then surely names it, though the run goes on.
        data = api.latest_snapshot(run, bar.at)
    with Bar() as bar:
        entries = api.log(run, bar.at)
    view, genesis = checked_view(entries)
    saved = _saved_as(view, chunk_list(data).blob)
    state = checked_state(data, genesis, saved)
    recipe = recipe_in_log(genesis.recipe)
    tokenizer = _tokenizer(api, run, genesis)
    export_huggingface(recipe.model, genesis.manifest, state.params, tokenizer, folder)
    text_model = isinstance(recipe.model, GptSpec | TransformersSpec)
    if text_model:
        _write_readme(folder, recipe.name, tokenizer is not None)
    return Exported(
        run=view.run,
        name=recipe.name,
        folder=str(folder),
        at=saved.at,
        state=saved.state,
        rounds=sum(step.position <= saved.at for step in view.path),
        rounds_sealed=len(view.path),
        final=view.stopped is not None and saved.at == view.at,
        loads_with="transformers" if text_model else "shoal",
    )


def checked_view(entries: list[bytes]) -> tuple[RunView, Genesis]:
    """What a log says, if all of it holds. Raises SH-LOG-01 that names the first bad entry."""
    view, finding = verify_log(tracked(entries, "entries"))
    if finding is not None or view.genesis is None:
        what = f"entry {finding.position} {finding.what}" if finding else "the log is empty"
        raise ShoalError("SH-LOG-01", what, "see where it breaks: shoal log verify")
    return view, view.genesis


def checked_state(data: bytes, genesis: Genesis, saved: SavedState) -> State:
    """The state in a snapshot, if it is the one the log names. Raises SH-LOG-05 otherwise."""
    state = decode_state(data, genesis.layout)
    found = state_hash(state)
    if found != saved.state:
        raise ShoalError(
            "SH-LOG-05",
            f"the snapshot at {saved.at} has state {found[:16]}, the log says {saved.state[:16]}",
            "replay the log instead: shoal log replay",
        )
    return state


def _saved_as(view: RunView, blob: BlobId) -> SavedState:
    """The log's word on a snapshot, found by the hash of its bytes."""
    for saved in reversed(view.snapshots):
        if saved.blob == blob and view.stands(saved.at):
            return saved
    raise ShoalError(
        "SH-BLOB-02",
        f"the coordinator sent a snapshot ({blob[:16]}) that the log does not name",
        "try again; if it persists, check the coordinator's disk",
    )


def _tokenizer(api: ApiClient, run: str, genesis: Genesis) -> bytes | None:
    expected = genesis.manifest.tokenizer
    if expected is None:
        return None
    data = api.tokenizer(run)
    if chunk_list(data).blob != expected:
        raise ShoalError("SH-BLOB-02", "the tokeniser is not the one the log names", "try again")
    return data


def _write_readme(folder: Path, name: str, has_tokenizer: bool) -> None:
    """How a language model is loaded; the export of any other writes its own."""
    lines = _TOKENIZER if has_tokenizer else ""
    try:
        (folder / "README.md").write_text(_README.format(name=printable(name), tokenizer=lines), "utf-8")
    except OSError as error:
        raise ShoalError(
            "SH-DISK-02",
            f"{folder} cannot be written: {error}",
            "check its path, its permissions and its disk's room",
        ) from error


_TOKENIZER = 'tokenizer = AutoTokenizer.from_pretrained(".")\n'
_README = """# {name}: a language model trained with Shoal

Plain `transformers` loads this folder; no code comes with it.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")
{tokenizer}```
"""
