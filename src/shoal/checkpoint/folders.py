"""A checkpoint as a folder: a Hugging Face model, a `torch.distributed.checkpoint`, or the bare state.

In flow a vertex, its log and its state; out flows a folder, and the same again from one. Invariant: beside the model
lies the proof, `shoal/`: the signed log and what the model's form leaves out; a folder is read back only as a state
whose hash that log names, whatever its files say.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.checkpoint.hugging import read_huggingface
from shoal.checkpoint.library import genesis_of, pack_log, unpack_log
from shoal.checkpoint.vertices import Vertex, vertices_of
from shoal.data.manifest import blobs as data_blobs
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.state import State, decode_state, encode_state, state_hash
from shoal.runlog.entries import Genesis
from shoal.runlog.view import verify_log
from shoal.strategy.recipe import recipe_in_log
from shoal.training.export import export_huggingface

PROOF = "shoal"
MAX_ABOUT_BYTES = 64 << 20
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    SafetensorError,
    zipfile.BadZipFile,
    msgspec.DecodeError,
)
"""What a folder of strange files makes its readers raise."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`shoal/vertex.json`: which checkpoint, and in what form its model lies here."""

    vertex: str
    run: str
    at: int
    model: str
    form: str
    steps: tuple[int, ...] = ()
    """See `State.steps`."""
    index: dict[str, tuple[str, int, int]] = {}
    """Of a distributed checkpoint: the file, offset and length of every tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a folder holds, checked."""

    vertex: Vertex
    entries: list[bytes]
    state: State
    data: list[bytes]


def write_folder(
    folder: Path,
    form: str,
    vertex: Vertex,
    entries: list[bytes],
    state: State,
    room: BlobStore,
    *,
    data: bool,
) -> None:
    """Write a checkpoint; with `data`, also what it was trained on. Raises SH-DISK-02 or SH-MODEL-01."""
    view, _ = verify_log(entries)
    genesis = genesis_of(view)
    proof = folder / PROOF
    try:
        proof.mkdir(parents=True, exist_ok=True)
        index = FORMS[form].write(folder, state, genesis, room)
        (proof / "log").write_bytes(pack_log(entries))
        for blob in data_blobs(genesis.manifest) if data else ():
            (proof / "data").mkdir(exist_ok=True)
            (proof / "data" / blob).write_bytes(room.get(blob))
        about = About(
            vertex=vertex.id,
            run=vertex.run,
            at=vertex.at,
            model=vertex.model,
            form=form,
            steps=state.steps,
            index=index,
        )
        (proof / "vertex.json").write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    except (OSError, SafetensorError) as error:
        raise ShoalError(
            "SH-DISK-02",
            f"{folder} cannot be written: {error}",
            "check its path, its permissions and its disk's room",
        ) from error


def read_folder(folder: Path) -> Found:
    """What a folder holds. Raises SH-CKPT-05 unless all of it is what its signed log says."""
    try:
        about = msgspec.json.decode(_small(folder / PROOF / "vertex.json"), type=About)
        entries = unpack_log((folder / PROOF / "log").read_bytes())
        vertex = next(v for v in vertices_of(entries) if v.id == about.vertex)
        view, _ = verify_log(entries)
        if about.form not in FORMS:
            raise ValueError(f"a form that this version does not know, {about.form!r}")
        state = FORMS[about.form].read(folder, genesis_of(view), about)
        data = _data(folder, genesis_of(view))
    except StopIteration:
        raise _other(folder, "its log does not have the checkpoint that it names") from None
    except ShoalError as error:
        raise _other(folder, error.cause) from error
    except UNREADABLE as error:
        raise _other(folder, str(error) or type(error).__name__) from error
    if state_hash(state) != vertex.model:
        raise _other(folder, f"its state is {state_hash(state)[:16]}, its log says {vertex.model[:16]}")
    return Found(vertex=vertex, entries=entries, state=state, data=data)


def _small(path: Path) -> bytes:
    if path.stat().st_size > MAX_ABOUT_BYTES:
        raise ValueError(f"{path.name} is too large")
    return path.read_bytes()


def _data(folder: Path, genesis: Genesis) -> list[bytes]:
    """The data that came along, each piece being what the log names."""
    found = []
    for blob in sorted(data_blobs(genesis.manifest)):
        path = folder / PROOF / "data" / blob
        if path.is_file():
            found.append(path.read_bytes())
            if chunk_list(found[-1]).blob != blob:
                raise ValueError(f"the data in {path.name[:16]} is not what the log names")
    return found


def _other(folder: Path, why: str) -> ShoalError:
    return ShoalError(
        "SH-CKPT-05",
        f"{folder} cannot be taken as a checkpoint: {why}",
        "check the path, or fetch it again from a good source",
    )


# --- forms ---------------------------------------------------------------------------------------------

Index = dict[str, tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class Form:
    write: Callable[[Path, State, Genesis, BlobStore], Index]
    read: Callable[[Path, Genesis, About], State]


def _write_state(folder: Path, state: State, genesis: Genesis, room: BlobStore) -> Index:
    (folder / PROOF / "state").write_bytes(encode_state(state))
    return {}


def _read_state(folder: Path, genesis: Genesis, about: About) -> State:
    return decode_state((folder / PROOF / "state").read_bytes(), genesis.layout)


def _write_huggingface(folder: Path, state: State, genesis: Genesis, room: BlobStore) -> Index:
    tokenizer = genesis.manifest.tokenizer
    content = room.get(BlobId(tokenizer)) if tokenizer is not None else None
    export_huggingface(recipe_in_log(genesis.recipe).model, genesis.manifest, state.params, content, folder)
    if state.slots:
        save_file(dict(state.slots), folder / PROOF / "slots.safetensors")
    return {}


def _read_huggingface(folder: Path, genesis: Genesis, about: About) -> State:
    recipe = recipe_in_log(genesis.recipe)
    params = read_huggingface(recipe.model, genesis.manifest, folder)
    kept = folder / PROOF / "slots.safetensors"
    slots = load_file(kept) if kept.is_file() else {}
    return State(genesis.layout, params, slots, about.steps)


def _tensors(state: State) -> dict[str, torch.Tensor]:
    """Every tensor by name: the model's as they are called there, the outer optimiser's below their slot."""
    named = {}
    for prefix, vector in (
        ("model.", state.params),
        *((f"outer.{n}.", v) for n, v in sorted(state.slots.items())),
    ):
        for spec in state.layout.tensors:
            named[prefix + spec.name] = vector[spec.offset : spec.offset + spec.numel].view(spec.shape)
    return named


def _write_distributed(folder: Path, state: State, genesis: Genesis, room: BlobStore) -> Index:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # That one process saves alone, as it does here.
        written: Any = save(dict(_tensors(state)), checkpoint_id=folder, no_dist=True)
    stored = written.storage_data
    return {key.fqn: (at.relative_path, at.offset, at.length) for key, at in sorted(stored.items(), key=_fqn)}


def _fqn(item: Any) -> str:
    return str(item[0].fqn)


def _read_distributed(folder: Path, genesis: Genesis, about: About) -> State:
    """By our own index: the format's is a pickle, which a stranger's folder must not make us read."""
    vectors: dict[str, torch.Tensor] = {}
    for name, (file, offset, length) in about.index.items():
        group, tensor = _split(name)
        spec = next(spec for spec in genesis.layout.tensors if spec.name == tensor)
        if Path(file).name != file:
            raise ValueError(f"{file!r} is not a file of this folder")
        with open(folder / file, "rb") as opened:
            opened.seek(offset)
            values = _values_in(opened.read(length))
        vector = vectors.setdefault(group, torch.zeros(genesis.layout.numel))
        vector[spec.offset : spec.offset + spec.numel] = values
    params = vectors.pop("params")
    return State(genesis.layout, params, vectors, about.steps)


def _values_in(saved: bytes) -> torch.Tensor:
    """The float32 values of a tensor as torch saves it: the one storage in the archive, without its pickle."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        (storage,) = [name for name in archive.namelist() if name.endswith("/data/0")]
        return torch.frombuffer(bytearray(archive.read(storage)), dtype=torch.float32)


def _split(name: str) -> tuple[str, str]:
    """The vector and the tensor that a name in a distributed checkpoint means."""
    kind, _, rest = name.partition(".")
    if kind == "model":
        return "params", rest
    slot, _, tensor = rest.partition(".")
    return slot, tensor


FORMS: dict[str, Form] = {
    "state": Form(_write_state, _read_state),
    "hf": Form(_write_huggingface, _read_huggingface),
    "dcp": Form(_write_distributed, _read_distributed),
}
"""How a model may lie in a folder."""
