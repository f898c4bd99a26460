"""What the API answers: plain, documented values.

In flow facts from the log and the seats; out flow JSON and its schema. Invariant: a field is null where the
run does not know, never a made-up number.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RunState = Literal["waiting", "running", "finishing", "over"]
NodeState = Literal["in", "next", "behind", "silent", "gone"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Health(_Answer):
    ok: bool = Field(description="True while the coordinator takes events.")
    coordinator: str = Field(description="The coordinator's node id.")
    version: str
    runs: int


class RunSummary(_Answer):
    run: str
    name: str = Field(description="The recipe's name.")
    state: RunState = Field(
        description="waiting: for nodes; running: a round is open; finishing: stopped, the final state is not "
        "saved yet; over: stopped and saved."
    )
    waiting_for: str = Field(description="What the run waits for now, in words.")
    round: int = Field(description="Rounds sealed so far, undone ones included.")
    rounds: int | None = Field(description="Rounds the recipe's budget allows, if it says so.")
    nodes_live: int
    train_loss: float | None = Field(description="Of the last round, the mean over its samples.")
    validation_loss: float | None = Field(description="The latest one.")
    stopped: str | None = Field(description="Why the run ended, once it has.")


class RoundLoss(_Answer):
    round: int
    position: int = Field(description="The seal's position in the log.")
    updates: int
    samples: int
    tokens: int
    update_bytes: int = Field(description="Encoded updates of the round, together.")
    train_loss: float | None
    validation_loss: float | None


class NodeStatus(_Answer):
    node: str
    name: str
    state: NodeState = Field(
        description="in: in the open round's plan; next: ready for the next plan; behind: has not the current "
        "state yet; silent: its lease runs or has run out; gone: left or never came back."
    )
    why: str = Field(description="The reason of its state, in words.")
    doing: str
    at: int | None = Field(description="The seal its state stands at.")
    step: int | None
    loss: float | None = Field(description="Of its last local steps.")
    tokens_per_s: float | None
    up_bytes: int | None
    down_bytes: int | None
    device: str
    reachable: bool = Field(description="Whether peers can fetch from it.")
    rejected: str | None = Field(description="Why its last rejected update was rejected.")


class Rejection(_Answer):
    node: str
    round: int
    sequence: int
    reason: str


class Attested(_Answer):
    at: int
    state: str
    by: int = Field(description="How many nodes attested this state.")


class SnapshotInfo(_Answer):
    at: int
    state: str
    blob: str
    size_bytes: int


class RunStatus(RunSummary):
    coordinator: str
    term: int
    head: int = Field(description="Position of the last entry.")
    head_hash: str
    at: int = Field(description="Position of the seal whose state is current; 0 at the beginning.")
    members: int = Field(description="Nodes that were ever admitted.")
    parameters: int
    tokens: int = Field(description="Tokens (or samples) in the updates that stand.")
    update_bytes: int
    attested: Attested | None = Field(description="The last state that nodes attested.")
    snapshot: SnapshotInfo = Field(description="The latest saved state that stands.")
    losses: list[RoundLoss] = Field(description="The last rounds that stand, oldest first.")
    nodes: list[NodeStatus]
    rejected: list[Rejection] = Field(description="The last rejected updates, oldest first.")


class LogItem(_Answer):
    position: int
    kind: str
    hash: str
    previous: str
    term: int
    time_ms: int
    body: dict[str, Any] = Field(description="The entry's body; bytes are base64.")
    encoded: str = Field(description="The signed entry as stored, base64: what `verify` checks.")


class LogPage(_Answer):
    run: str
    length: int
    items: list[LogItem]


class Submitted(_Answer):
    run: str
    name: str
    ticket: str = Field(description="What `shoal join` takes.")


class TicketAnswer(_Answer):
    run: str
    ticket: str
    expires_ms: int | None


class StopRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: str = Field(default="stopped by the organiser", min_length=1, max_length=200)


class RewindRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    to: int = Field(ge=0, description="Position of a seal that stands, or 0 for the beginning.")
    reason: str = Field(min_length=1, max_length=200)


class TicketRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    expires_s: float | None = Field(default=None, gt=0, le=10 * 366 * 86400)


class Problem(BaseModel):
    """RFC 9457 problem details, with our code and what to do next."""

    title: str
    status: int
    detail: str
    code: str | None = None
    next_step: str | None = None
