"""A coordinator and nodes as real processes on loopback, for one run of a tiny model.

In flow a recipe and names; out flow processes, the run's status and its log. Invariant: each process has a home
of its own, which outlives it, so that starting it again is a restart; nothing waits without a deadline.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from shoal.apps.home import Home
from shoal.base.ids import NodeId, RunId
from shoal.lab.pace import environment_of
from shoal.runlog.chain import Link, read_link
from shoal.runlog.entries import Claim, Seal
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, parse

from .processes import Child, eventually, free_port

START_S = 120.0
"""How long a process may take until it is of use: torch alone takes seconds on a busy machine."""

STEP_S = 0.1

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {"kind": "mlp", "width": 16, "layers": 1},
    "data": {"source": "digits", "validation_fraction": 0.2},
    "inner": {"kind": "adamw", "lr": 0.003, "batch_size": 16},
    "strategy": {
        "preset": "local-sgd",
        "schedule": {"steps": 2},
        "seal": {"kind": "all-or-deadline", "deadline_s": 4.0},
    },
    "budget": {"rounds": 100_000},
    "membership": {"lease_s": 2.0, "heartbeat_s": 0.2, "reconnect_s": 1.0},
    "storage": {"snapshot_every": 5},
    "evaluation": {"every": 5, "batches": 1},
}


def tiny(**sections: dict[str, Any]) -> dict[str, Any]:
    """The tiny recipe with some sections' fields replaced."""
    return {**TINY, **{name: {**TINY[name], **fields} for name, fields in sections.items()}}


def with_deadline(deadline_s: float) -> dict[str, Any]:
    return {"seal": {"kind": "all-or-deadline", "deadline_s": deadline_s}}


class Fleet:
    """Use it in a `with` statement. `store` is where the logs lie, if not in the coordinator's home."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder
        self.store_url = store or Home(self.home).store_url
        self.place = ["--home", str(self.home), *(["--store", store] if store else [])]
        """The options that say where the coordinator's things are."""
        self.control_port, self.blob_port = free_port(), free_port()
        self.run = RunId("")
        self.ticket = ""
        self.coordinator: Child | None = None
        self.nodes: dict[str, Child] = {}
        self.environment = environment_of(1.0, STEP_S)
        """What everybody finds in theirs. Steps take as long as on some device: nodes that train as quickly as they
        can, while nothing is asked of them, would take the cores from whatever is being tested."""
        self._children: list[Child] = []
        self._api = httpx.Client(timeout=10.0)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
        self._api.close()

    def logs(self) -> str:
        """Everything that everybody said, for a failed test."""
        files = sorted((self.folder / "logs").glob("*"))
        return "\n".join(f"--- {path.name}\n{_tail(path)}" for path in files)

    # --- processes -----------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """The coordinator's."""
        return self.folder / "coordinator-home"

    def home_of(self, name: str) -> Path:
        return self.folder / f"{name}-home"

    def node_folder(self, name: str) -> Path:
        """A node's folder for the run."""
        return self.home_of(name) / "node" / "runs" / self.run

    def serve(self, recipe: dict[str, Any] | None = None, *, failpoint: str = "", port: int = 0) -> Child:
        """Start the coordinator, or start it again, and wait until it is ready."""
        self._start_coordinator(recipe, failpoint, port)
        assert self.coordinator is not None
        child, before = self.coordinator, self._ready_lines
        eventually(
            lambda: self._count_ready() > before or not child.alive, START_S, "the coordinator's ready"
        )
        assert self._count_ready() > before, f"the coordinator did not start\n{self.logs()}"
        lines = child.out.read_text().splitlines()
        address = [line.split()[1] for line in lines if line.startswith("  api ")][-1]
        token = (self.home / "coordinator" / "admin-token").read_text().strip()
        self._api.base_url = httpx.URL(address)
        self._api.headers["Authorization"] = f"Bearer {token}"
        for line in lines:
            if line.startswith("  run "):
                self.run = RunId(line.split()[1])
            if line.startswith("  shoal join "):
                self.ticket = line.split()[2]
        return child

    def _start_coordinator(self, recipe: dict[str, Any] | None, failpoint: str, port: int) -> None:
        arguments = ["serve", *self.place, "--port", str(port)]
        arguments += ["--control-port", str(self.control_port), "--blob-port", str(self.blob_port)]
        if recipe is not None:
            path = self.folder / "recipe.yaml"
            path.write_text(json.dumps(recipe))  # JSON is YAML.
            arguments += ["--recipe", str(path)]
        self._ready_lines = self._count_ready()
        self.coordinator = self._start("coordinator", arguments, failpoint)

    def _count_ready(self) -> int:
        said = self.folder / "logs" / "coordinator.out"
        return said.read_text().splitlines().count("ready") if said.exists() else 0

    def join(self, name: str, *options: str, failpoint: str = "", ticket: str = "") -> Child:
        """Start a node, or start it again in its old home. Peers reach it on loopback."""
        arguments = ["join", ticket or self.ticket, "--home", str(self.home_of(name)), "--name", name]
        arguments += ["--yes", "--port", "0", "--bind", "127.0.0.1", *options]
        self.nodes[name] = self._start(name, arguments, failpoint)
        return self.nodes[name]

    def _start(self, name: str, arguments: list[str], failpoint: str) -> Child:
        (self.folder / "logs").mkdir(exist_ok=True, parents=True)
        environment = {**self.environment, **({"SHOAL_FAILPOINT": failpoint} if failpoint else {})}
        child = Child(arguments, self.folder / "logs" / name, environment)
        self._children.append(child)
        return child

    def node_id(self, name: str) -> NodeId:
        """Who a node is, by its key file; waits for the file."""
        key = self.home_of(name) / "node" / "key"
        text = self.until(lambda: key.read_text().strip() if key.exists() else "", START_S, f"{name}'s key")
        return Identity(bytes.fromhex(text)).node

    # --- what the coordinator says -------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        answer = self._api.get(f"/api/v1/runs/{self.run}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._api.post(f"/api/v1/runs/{self.run}/{path}", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def links(self, start: int = 0) -> list[Link]:
        """The log from `start`, over HTTP."""
        found: list[Link] = []
        while True:
            where = {"start": start + len(found), "limit": 256}
            answer = self._api.get(f"/api/v1/runs/{self.run}/log", params=where)
            answer.raise_for_status()
            items = answer.json()["items"]
            if not items:
                return found
            found += [read_link(base64.b64decode(item["encoded"])) for item in items]

    def coordinator_id(self) -> NodeId:
        return NodeId(self.status()["coordinator"])

    def length(self) -> int:
        return int(self.status()["head"]) + 1

    # --- waiting -------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], within_s: float, what: str) -> Any:
        """As `eventually`, with everybody's words where it fails."""
        try:
            return eventually(condition, within_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def contributes(self, name: str, after: int = 0, within_s: float = START_S) -> Link:
        """Wait for a seal after position `after` that accepts this node's work."""
        node, seen = self.node_id(name), after + 1

        def found() -> Link | None:
            nonlocal seen
            news = self.links(seen)
            seen += len(news)
            return next((link for link in news if node in accepted_nodes(link)), None)

        link: Link = self.until(found, within_s, f"a seal after {after} with {name}'s work")
        return link

    def seals_after(self, position: int, count: int = 1, within_s: float = START_S) -> None:
        """Wait until the log has so many more seals."""

        def enough() -> bool:
            return sum(isinstance(link.entry.body, Seal) for link in self.links(position + 1)) >= count

        self.until(enough, within_s, f"{count} seals after {position}")


def accepted_claims(link: Link) -> list[tuple[Claim, Signed]]:
    """The claims that an entry seals, opened and as they were signed."""
    body = link.entry.body
    if not isinstance(body, Seal):
        return []
    opened = [(parse(item.claim.payload, Claim), item.claim) for item in body.accepted]
    return [(claim, signed) for claim, signed in opened if claim is not None]


def accepted_nodes(link: Link) -> list[NodeId]:
    return [claim.node for claim, _ in accepted_claims(link)]


def _tail(path: Path, lines: int = 60) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
