"""Finding a run's log on this machine, and its entries as people read them.

In flow a home folder or a store's address and the beginning of a run's id; out flow the log's bytes and its
blobs, or lines. Invariant: what is read is never mended: a torn or damaged tail is reported where it lies.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.apps.home import Home, find_home
from shoal.apps.node_status import show_count
from shoal.apps.printable import printable
from shoal.base.disk import Buffer, Disk, SubDisk, WriteAt
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import MEND_STORE
from shoal.base.units import show_bytes
from shoal.credit.spec import show_credits
from shoal.replica.blobs import BlobStore
from shoal.runlog.chain import BadEntry, Link, read_link
from shoal.runlog.entries import (
    Attestation,
    Attestations,
    Audits,
    Ban,
    Body,
    Claim,
    Digests,
    Folding,
    Funded,
    Genesis,
    Graft,
    Joined,
    Left,
    Plan,
    Regions,
    Revoked,
    Rewind,
    Rotated,
    Screening,
    Seal,
    Snapshot,
    Stopped,
    Verdict,
)
from shoal.runlog.files import FileLogStore
from shoal.wire.signed import parse
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

MAX_LINE = 10_000
TOLD_SHARES = 8
MAX_TIME_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """A run's log as it lies on this machine."""

    run: RunId
    entries: list[bytes]
    blobs: BlobStore
    complaints: tuple[str, ...]
    """What the store itself finds wrong, the first of it first."""
    complete: bool
    """True where everything that the log needs must be stored: with the coordinator."""


class Untouched:
    """A disk whose changes are noted and not made."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.cuts: dict[str, int] = {}
        """Files that their reader wanted to shorten, and to what size."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._disk.read(path, start, stop)

    def size(self, path: str) -> int | None:
        return self._disk.size(path)

    def list(self, folder: str) -> list[str]:
        return self._disk.list(folder)

    def truncate(self, path: str, size: int) -> None:
        self.cuts[path] = size

    def sync(self, path: str) -> None:
        return None

    def sync_folder(self, path: str) -> None:
        return None

    def write(self, path: str, data: Buffer) -> None:
        raise AssertionError(f"a reader wrote {path}")

    def write_at(self, path: str, offset: int, data: Buffer) -> None:
        raise AssertionError(f"a reader wrote {path}")

    def reserve(self, path: str, size_bytes: int) -> WriteAt:
        raise AssertionError(f"a reader wrote {path}")

    def append(self, path: str, data: Buffer) -> None:
        raise AssertionError(f"a reader wrote {path}")

    def rename(self, old: str, new: str) -> None:
        raise AssertionError(f"a reader renamed {old}")

    def remove(self, path: str) -> None:
        raise AssertionError(f"a reader removed {path}")


def find_log(
    home: Path | None, store: str | None, run: str, *, node: bool, file: Path | None = None
) -> FoundLog:
    """The log of the run whose id begins with `run`, in a home, a store or a node's log file.

    Raises SH-API-02, SH-LOG-01 or SH-LOG-04.
    """
    if file is not None:
        return _of_file(file.absolute())
    where = find_home(home)
    if node:
        return _of_node(where.node, run)
    if store is None and not where.store_file.exists():
        raise _no_coordinator(where)
    return _of_coordinator(where.coordinator, store or where.store_url, run)


def _no_coordinator(home: Home) -> ShoalError:
    """Nobody said whose log is meant, and the coordinator's is not there."""
    copies = (home.node / "runs").is_dir()
    return ShoalError(
        "SH-LOG-04",
        f"the coordinator's log is read unless --node or --file is given, and there is none at {home.store_file}"
        + ("; a node of this home has copies" if copies else ""),
        "add --node for a node's copy"
        if copies
        else "add --node or --file for a node's copy, or check --home",
    )


def _of_coordinator(folder: Path, url: str, prefix: str) -> FoundLog:
    store = SqlLogStore(url, create=False)
    try:
        complaints = tuple(store.integrity())
        run = _pick_sound(store.runs(), prefix, store.name, complaints)
        entries, error = _read_all(store.read(run))
        error = error or _complaint(lambda: store.kept(run, ""))
    finally:
        store.close()
    return FoundLog(
        run=run,
        entries=entries,
        blobs=BlobStore(Untouched(SubDisk(_disk(folder), f"runs/{run}")), _pass),
        complaints=(*((error.cause,) if error else ()), *complaints),
        complete=True,
    )


def _of_node(folder: Path, prefix: str) -> FoundLog:
    kept = folder / "runs"
    names = sorted(path.name for path in kept.iterdir()) if kept.is_dir() else []
    run = _pick([RunId(name) for name in names], prefix, str(folder))
    return _of_folder(kept / run, run)


def _of_file(path: Path) -> FoundLog:
    """A node's log file, RUN/logs/RUN.log, with the blobs beside it."""
    if path.suffix != ".log" or path.parent.name != "logs" or not path.is_file():
        raise ShoalError("SH-LOG-04", f"{path} is not a log file", "name a file .../logs/RUN.log")
    return _of_folder(path.parent.parent, RunId(path.stem))


def _of_folder(folder: Path, run: RunId) -> FoundLog:
    disk = Untouched(_disk(folder))
    entries, error = _read_all(FileLogStore(disk, _pass).read(run))
    complaints = [error.cause] if error else []
    for path, size in disk.cuts.items():
        rest = (disk.size(path) or 0) - size
        complaints.append(
            f"entry {len(entries)} is damaged, or was cut off while it was written:"
            f" {rest} bytes of it at byte {size} of {path}"
        )
    return FoundLog(
        run=run,
        entries=entries,
        blobs=BlobStore(disk, _pass),
        complaints=tuple(complaints),
        complete=False,
    )


def _read_all(entries: Iterator[bytes]) -> tuple[list[bytes], ShoalError | None]:
    """As many entries as can be read, and what stopped the reading."""
    read: list[bytes] = []
    try:
        for entry in entries:
            read.append(entry)
    except ShoalError as error:
        return read, error
    return read, None


def _complaint(look: Callable[[], object]) -> ShoalError | None:
    try:
        look()
    except ShoalError as error:
        return error
    return None


def _disk(folder: Path) -> Disk:
    if not folder.is_dir():
        raise ShoalError("SH-LOG-04", f"there is no folder {folder}", "check --home")
    return FileDisk(folder)


def _pass(point: str) -> None:
    return None


def _pick_sound(runs: list[RunId], prefix: str, where: str, complaints: tuple[str, ...]) -> RunId:
    """The run, unless the store is damaged in a way that makes another run of a part of it."""
    try:
        return _pick(runs, prefix, where)
    except ShoalError:
        if not complaints:
            raise
        raise ShoalError("SH-LOG-01", f"the store {where} is damaged: {complaints[0]}", MEND_STORE) from None


def _pick(runs: list[RunId], prefix: str, where: str) -> RunId:
    fitting = [run for run in runs if run.startswith(prefix)]
    if len(fitting) == 1:
        return fitting[0]
    if not runs:
        raise ShoalError(
            "SH-API-02", f"there are no runs in {where}", "name the home of the coordinator by --home"
        )
    known = ", ".join(run[:12] for run in runs)
    what = f"{len(fitting)} runs begin with {prefix!r}" if fitting else f"no run begins with {prefix!r}"
    raise ShoalError("SH-API-02", f"{what} in {where}", f"name one of: {known}")


# --- entries as people read them -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    position: int
    time_ms: int
    kind: str
    text: str

    @property
    def fields(self) -> dict[str, Any]:
        return {"position": self.position, "time_ms": self.time_ms, "kind": self.kind, "text": self.text}

    def __str__(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.time_ms / 1000, datetime.UTC)
        return f"{self.position:>6}  {moment:%Y-%m-%d %H:%M:%S}  {self.kind:<12}  {self.text}"


def lines_of(entries: list[bytes]) -> Iterator[Line]:
    """One line for each entry; those that cannot be read say so. Nothing is checked: that is `verify`."""
    names: dict[str, str] = {}
    for position, encoded in enumerate(entries):
        try:
            link: Link = read_link(encoded)
        except BadEntry as error:
            yield Line(position, 0, "?", printable(str(error)))
            continue
        entry, body = link.entry, link.entry.body
        if isinstance(body, Joined):
            names[body.node] = f"{body.name} ({body.node[:8]})"
        kind = type(body).__name__.lower()
        yield Line(entry.position, entry.time_ms, kind, printable(_words(body, names), MAX_LINE))


def _words(body: Body, names: dict[str, str]) -> str:
    match body:
        case Genesis():
            return f"{show_count(body.layout.numel)} parameters, state {body.state[:16]}"
        case Joined():
            return names[body.node]
        case Left():
            return f"{names.get(body.node, body.node[:8])}: {body.reason}"
        case Plan():
            return f"round {body.round}: {body.reason}{_share_words(body, names)}"
        case Seal():
            return _seal_words(body, names)
        case Digests():
            return f"of the seal at {body.seal}: {body.reason or f'{len(body.items)} shards'}{_dissent(body, names)}"
        case Attestations():
            return _attestation_words(body, names)
        case Snapshot():
            return f"state {body.state[:16]} at {body.at}, {show_bytes(body.size_bytes)}"
        case Graft():
            return f"news of the parent run up to {body.parent.position}, {show_bytes(body.size_bytes)}"
        case Rewind():
            return f"back to {body.to}: {body.reason}"
        case Stopped():
            return body.reason
        case Audits():
            return _audit_words(body, names)
        case Ban():
            who = names.get(body.node, body.node[:8])
            moment = datetime.datetime.fromtimestamp(min(body.until_ms, MAX_TIME_MS) / 1000, datetime.UTC)
            until = f"until {moment:%Y-%m-%d %H:%M:%S}" if body.until_ms else "not any more"
            return f"{who}, {until}: {body.reason}"
        case Rotated():
            return f"another key speaks for {names.get(body.node, body.node[:8])}"
        case Revoked():
            by = "by its own word" if body.word is not None else "by the organiser"
            return f"the keys of {names.get(body.node, body.node[:8])}, {by}: {body.reason}"
        case Funded():
            return f"{show_credits(body.add_micro)} credits more to earn: {body.reason}"
        case Regions():
            return _regions_words(body, names)


def _regions_words(body: Regions, names: dict[str, str]) -> str:
    told = "".join(
        f"; region {item.number}: hub {names.get(item.hub, item.hub[:8])}, "
        f"heirs {' '.join(heir[:8] for heir in item.heirs) or 'none'}, {item.reason}"
        for item in body.items
    )
    return f"{body.reason}{told}"


def _share_words(plan: Plan, names: dict[str, str]) -> str:
    """Why each has the work it has; in a large fleet, those whose work is not the usual."""
    told = [item for item in plan.members if item.reason]
    if len(told) > TOLD_SHARES:
        usual = max(item.batch for item in told)
        told = [item for item in told if item.thin > 1 or item.coded or item.codec or item.batch < usual]
    words = "".join(f"; {names.get(i.node, i.node[:8])}: {i.reason}" for i in told[:TOLD_SHARES])
    more = len(told) - TOLD_SHARES
    return words + (f"; and {more} more" if more > 0 else "")


def _seal_words(seal: Seal, names: dict[str, str]) -> str:
    claims = [claim for item in seal.accepted if (claim := parse(item.claim.payload, Claim)) is not None]
    taken = ", ".join(f"{names.get(c.node, c.node[:8])} loss {c.loss:.3f}" for c in claims)
    size = show_bytes(sum(claim.size_bytes for claim in claims))
    refused = "".join(f"; not {names.get(r.node, r.node[:8])}: {r.reason}" for r in seal.rejected)
    return f"round {seal.round}: {seal.reason}, {size}: {taken}{refused}"


def _dissent(body: Digests, names: dict[str, str]) -> str:
    """Which shards their folders disagree on, and who said what."""
    said: dict[int, dict[str, list[str]]] = {}
    for signed in body.words:
        word = parse(signed.payload, Folding)
        if word is None:
            continue
        for number, blob, _ in word.items:
            said.setdefault(number, {}).setdefault(blob, []).append(names.get(word.node, word.node[:8]))
    split = {number: versions for number, versions in sorted(said.items()) if len(versions) > 1}
    told = [
        f"; shard {number} is disputed: "
        + " against ".join(" and ".join(sides) for sides in sorted(versions.values(), key=len, reverse=True))
        for number, versions in split.items()
    ]
    return "".join(told)


def _audit_words(body: Audits, names: dict[str, str]) -> str:
    words = []
    for item in body.screenings:
        if (screening := parse(item.payload, Screening)) is not None:
            who = names.get(screening.node, screening.node[:8])
            worst = max(screening.scores, default=0) / 1000
            words.append(f"{who} screened the seal at {screening.at.position}: {worst:.1f} at most")
    for item in body.verdicts:
        if (verdict := parse(item.payload, Verdict)) is not None:
            who, whom = (names.get(node, node[:8]) for node in (verdict.node, verdict.author))
            found = f"{verdict.outcome}, {verdict.distance:.3g} apart"
            words.append(f"{who} on {whom} in the seal at {verdict.at.position}: {found}")
    return ", ".join(words)


def _attestation_words(body: Attestations, names: dict[str, str]) -> str:
    found = [word for item in body.items if (word := parse(item.payload, Attestation)) is not None]
    words = []
    for word in found:
        loss = f" (validation {word.validation:.4f})" if word.validation is not None else ""
        words.append(f"{names.get(word.node, word.node[:8])}: {word.state[:16]} at {word.at.position}{loss}")
    return ", ".join(words)
