"""Every stored file of a home, checked by what vouches for it: its name, a signature, a hash in the log, a checksum.

In flow a home; out flow the damaged files by name, each with what became of it. Invariant: nothing is changed but by
`repair`, and what is damaged is set aside, never thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.apps.ckpt_reading import opened
from shoal.apps.ckpt_repairing import Repairing, repair_store
from shoal.apps.home import find_home
from shoal.apps.logs_reading import find_log
from shoal.apps.progress import Bar, tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.rot import SUFFIX, checksum, is_sound
from shoal.checkpoint.archive import ChunkArchive
from shoal.credit.ledger import read_receipt
from shoal.node.keeping import COORDINATORS, RECEIPT_NAMES, RECEIPTS, is_summed
from shoal.replica.blobs import chunk_list, is_blob_id
from shoal.runlog.entries import Claim
from shoal.runlog.evidence import read_proof
from shoal.runlog.view import RunView, verify_log
from shoal.runlog.voter import RECORD, is_record
from shoal.wire.signed import Signed, parse
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.locks import held
from shoal.worlds.real.sqlstore import SqlLogStore

NO_RUN = RunId("")
WHOLE_AGAIN = ("repaired", "set aside for good")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    path: Path
    what: str
    kind: str
    """What may repair it: `blob`, `archive`, `log`, `store`, `small`, `private`, which nobody else has, or `promises`,
    which nothing may."""
    run: RunId


def verify_vertex(home: Path | None, store: str | None, name: str) -> dict[str, Any]:
    """Rebuild one checkpoint's state and compare it with what was signed. Raises what is wrong with it."""
    with opened(home, store) as here:
        vertex = here.library.dag().find(name)
        here.library.state_of(vertex)
    signed, of = vertex.quorum.part()
    reached = vertex.quorum.reached() or vertex.quorum.reached("stake")
    words = "a quorum" if reached else "NO quorum"
    summary = (
        f"checkpoint {vertex.id[:12]}: model {vertex.model[:16]} as signed; {signed} of {of} signed: {words}"
    )
    told = {"vertex": vertex.id, "model": vertex.model, "signed": signed, "of": of, "quorum": reached}
    return {**told, "ok": reached, "summary": summary}


def verify_home(
    home: Path | None, store: str | None, *, node: bool, repair: bool, sources: Sequence[Path]
) -> dict[str, Any]:
    """Check all files; with `repair`, mend what can be mended from `sources`, other homes, or by the run's members."""
    where = find_home(home)
    root = where.node if node else where.coordinator
    with Bar("checking every stored file"):
        damages = list(_node_damages(root) if node else _coordinator_damages(root, home, store))
    told = []
    mending = Repairing(root, [*sources, where.root])
    for damage in tracked(damages, "damaged files"):
        fate = _repair(root, mending, damage, store) if repair else ""
        told.append({"file": str(damage.path), "what": damage.what, "kind": damage.kind, "repair": fate})
    left = [item for item in told if not item["repair"].startswith(WHOLE_AGAIN)]
    checked = sum(path.is_file() for path in root.rglob("*"))
    summary = f"{checked} files, {len(damages)} damaged, {len(damages) - len(left)} repaired"
    told_all = {"home": str(root), "files": checked, "damaged": told, "ok": not left, "summary": summary}
    return {**told_all, "code": "SH-CKPT-07" if left else None}


def _repair(root: Path, mending: Repairing, damage: Damage, store: str | None) -> str:
    """What became of it; "repaired ..." where it is whole again."""
    folder = root if damage.kind == "store" else root / "runs" / damage.run
    if damage.kind not in ("store", "log", "private"):
        return _mend(mending, damage, store)
    # Whoever works there has these files open, and would go on writing to those that were set aside.
    with held(folder) as mine:
        return _mend(mending, damage, store) if mine else "left as it is: stop the process of this home first"


def _mend(mending: Repairing, damage: Damage, store: str | None) -> str:
    match damage.kind:
        case "blob":
            return mending.blob(damage.path, damage.run)
        case "log":
            return mending.log(damage.path, damage.run)
        case "store":
            return "its database sees to itself" if store else repair_store(mending, damage.path)
        case "archive":
            return mending.archive(damage.path)
        case "small":
            return mending.small(damage.path)
        case "promises":
            return "left as it is: this node votes no more in the run; a new key (a new node) would"
        case _:
            return mending.private(damage.path)


# --- what is damaged -------------------------------------------------------------------------------------


def _coordinator_damages(root: Path, home: Path | None, store: str | None) -> Iterator[Damage]:
    yield from _small_damages(root)
    path = root / "store.sqlite"
    for what in _store_complaints(store or f"sqlite:///{path}"):
        yield Damage(path=path, what=what, kind="store", run=NO_RUN)
        break  # One is enough: it is repaired as a whole.
    for folder in _folders(root / "runs"):
        yield from _blob_damages(folder)
        for name in ChunkArchive(FileDisk(folder)).damaged():
            what = "does not have the content its name says"
            yield Damage(path=folder / name, what=what, kind="archive", run=RunId(folder.name))


def _store_complaints(url: str) -> Iterator[str]:
    """What is wrong with the logs and the kept values."""
    try:
        store = SqlLogStore(url, create=False)
    except ShoalError as error:
        yield error.cause
        return
    try:
        yield from store.integrity()
        for run in store.runs():
            _, finding = verify_log(tracked(list(store.read(run)), "entries"), run)
            if finding is not None:
                yield f"run {run[:12]}: entry {finding.position} {finding.what}"
            store.kept(run, "")
    except ShoalError as error:
        yield error.cause
    finally:
        store.close()


def _node_damages(root: Path) -> Iterator[Damage]:
    yield from _small_damages(root)
    for folder in _folders(root / "runs"):
        run = RunId(folder.name)
        view = None
        path = folder / "logs" / f"{run}.log"
        if path.is_file():
            log = find_log(None, None, "", node=True, file=path)
            view, finding = verify_log(tracked(log.entries, "entries"), run)
            if finding is not None:
                yield Damage(path=path, what=f"entry {finding.position} {finding.what}", kind="log", run=run)
            elif log.complaints:
                yield Damage(path=path, what=log.complaints[0], kind="log", run=run)
        yield from _blob_damages(folder)
        yield from _private_damages(folder, run, view)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _small_damages(root: Path) -> Iterator[Damage]:
    """Keys and tokens, by the checksums beside them."""
    for beside in sorted(root.rglob(f"*{SUFFIX}")):
        path = beside.with_name(beside.name.removesuffix(SUFFIX))
        if not path.is_file():
            yield Damage(path=path, what="is missing", kind="small", run=NO_RUN)
        elif not is_sound(path.read_bytes(), beside.read_bytes()):
            yield Damage(path=path, what="is not what its checksum says", kind="small", run=NO_RUN)
        elif beside.read_bytes() != checksum(path.read_bytes()):
            yield Damage(path=beside, what="is no longer the file's checksum", kind="small", run=NO_RUN)


def _blob_damages(folder: Path) -> Iterator[Damage]:
    """Blobs, by their names."""
    blobs = folder / "blobs"
    found = sorted(blobs.iterdir()) if blobs.is_dir() else []
    for path in tracked(found, "blobs"):
        if is_blob_id(path.name) and chunk_list(path.read_bytes()).blob != path.name:
            what = "does not have the content its name says"
            yield Damage(path=path, what=what, kind="blob", run=RunId(folder.name))


def _private_damages(folder: Path, run: RunId, view: RunView | None) -> Iterator[Damage]:
    """What a node keeps for itself: the last claim by its signature, the state behind it by the claim, a hub's
    alignment and the coordinators' addresses by their checksums, a proof by what it proves, receipts by the
    coordinator's signature."""
    outbox, claim = folder / "outbox", None
    if outbox.is_file():
        signed = parse(outbox.read_bytes(), Signed)
        claim = parse(signed.payload, Claim) if signed else None
        keys = view.keys.get(claim.node) if claim and view else None
        if signed is None or claim is None or (keys and not keys.signed(signed, Claim, claim.plan)):
            yield Damage(path=outbox, what="is not a claim that this node signed", kind="private", run=run)
            claim = None
    for path in sorted(folder.glob("local-*")):
        named = claim is not None and path.name == f"local-{claim.sequence}"
        if named and claim is not None and chunk_list(path.read_bytes()).blob != claim.local_after:
            yield Damage(path=path, what="is not the state that its claim names", kind="private", run=run)
    for path in sorted([*folder.rglob("alignment-*"), *folder.glob(COORDINATORS)]):
        if not is_summed(path.read_bytes()):
            yield Damage(path=path, what="is not what its checksum says", kind="private", run=run)
    for path in sorted(folder.rglob(f"kept-*/{RECORD}")):
        if not is_record(path.read_bytes()):
            what = "is not what its checksum says: what this node has promised as a voter"
            yield Damage(path=path, what=what, kind="promises", run=run)
    keys_known = view.coordinator_keys if view else ()
    for path in sorted(folder.glob(f"{RECEIPTS}/{RECEIPT_NAMES}")):
        if keys_known and not any(read_receipt(path.read_bytes(), run, key) for key in keys_known):
            what = "is no receipt that the run's coordinator signed"
            yield Damage(path=path, what=what, kind="private", run=run)
    for path in sorted(folder.glob("proof-*.msgpack")):
        if view and keys_known and read_proof(path.read_bytes(), run, *keys_known) is None:
            what = f"proves nothing against {view.coordinator[:12]}"
            yield Damage(path=path, what=what, kind="private", run=run)
