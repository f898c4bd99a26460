"""What the API tells of a run's past: rounds, events, checkpoints, credit.

In flow facts that the log fixed; out flow JSON and its schema. Invariant: a record of the log never changes but in
`undone` and `validation_loss`, which later entries decide.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Level = Literal["info", "warning", "error"]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class UpdateRecord(Record):
    """One update that a round accepted."""

    node: str
    weight: int
    steps: int
    samples: int
    tokens: int
    size_bytes: int
    loss: float | None
    late: bool = Field(description="It was planned for an earlier round.")
    holders: list[str] = Field(description="Who received it before the round was sealed.")


class RefusedRecord(Record):
    """One update that a round rejected."""

    node: str
    reason: str


class RoundRecord(Record):
    """One round: who was in, late or rejected, and why."""

    round: int
    plan: int = Field(description="Position of the plan in the log.")
    seal: int | None = Field(description="Position of the seal; null while the round is open.")
    opened_ms: int
    sealed_ms: int | None
    planned: list[str]
    accepted: list[UpdateRecord]
    rejected: list[RefusedRecord]
    late: list[str] = Field(description="Planned nodes whose update did not come in time.")
    why_planned: str
    why_sealed: str
    steps: int = Field(description="Inner steps of a typical member up to and with this round.")
    tokens: int
    update_bytes: int
    dense_bytes: int = Field(description="What the same updates would take as 32-bit numbers.")
    train_loss: float | None
    validation_loss: float | None
    undone: bool = Field(description="A later rewind took it back.")


class EventRecord(Record):
    """Something that happened, in a sentence."""

    id: int
    time_ms: int
    kind: str
    level: Level
    text: str
    reason: str = Field(description="Why, where it was a decision.")
    round: int | None
    node: str | None
    position: int | None = Field(description="Of its entry in the log; null for what the log does not hold.")


class CheckpointRecord(Record):
    """A saved state."""

    at: int = Field(description="Position of the seal whose state it is; 0 for the beginning.")
    position: int = Field(description="Position of its own entry.")
    time_ms: int
    round: int
    parent: int | None = Field(description="The saved state before it on its path.")
    state: str
    blob: str
    size_bytes: int
    stands: bool = Field(description="False once a rewind took it back.")
    here: bool = Field(description="The coordinator has its bytes.")


class RewindRecord(Record):
    position: int
    time_ms: int
    to: int
    came_from: int
    reason: str


class CheckpointGraph(Record):
    run: str
    checkpoints: list[CheckpointRecord]
    rewinds: list[RewindRecord]


class CheckpointDag(Record):
    """See docs/checkpoints.md for the fields of a vertex."""

    vertices: list[dict[str, Any]] = Field(description="Parents before children.")
    edges: list[list[str]] = Field(description="Parent and child, by id.")
    heads: list[str] = Field(description="Those that nothing was made of yet.")
    absent: list[str] = Field(description="Parents whose log is not here.")


class RoundPage(Record):
    run: str
    total: int
    items: list[RoundRecord]


class EventPage(Record):
    run: str
    total: int = Field(description="Events that match.")
    next: int | None = Field(description="`before` of the next older page; null at the end.")
    items: list[EventRecord] = Field(description="Newest first.")


class FateRecord(Record):
    """What became of a node's part in one round."""

    round: int
    fate: Literal["accepted", "late", "rejected", "open"]
    why: str
    tokens: int
    loss: float | None
    sealed_ms: int | None


class TrailPoint(Record):
    """A node's own word on itself at a moment."""

    time_ms: int
    step: int
    loss: float | None
    tokens_per_s: float | None
    up_bytes: int
    down_bytes: int
    doing: str


class Contribution(Record):
    """What came of a node's work so far."""

    planned: int
    accepted: int
    late: int
    rejected: int
    tokens: int
    update_bytes: int


class NodePage(Record):
    run: str
    node: dict[str, Any] = Field(description="As in the run's status.")
    contribution: Contribution
    fates: list[FateRecord] = Field(description="Its last rounds, oldest first.")
    trail: list[TrailPoint] = Field(description="Its last minutes, oldest first.")
    events: list[EventRecord] = Field(description="Newest first.")


class LinksPage(Record):
    """The ways between live nodes, as far as they were measured."""

    run: str
    nodes: list[str] = Field(
        description="Whom the matrix is about, in its order; some of them where they are many."
    )
    rtt_ms: list[list[float | None]] = Field(description="Round trips by row and column; null where unknown.")
    regions: list[RegionRecord]


class RegionRecord(Record):
    members: list[str]
    hub: str
    reason: str


class CreditLine(Record):
    node: str
    name: str
    micro: int
    by_role: dict[str, int]
    share: float = Field(description="Of everything that was earned, 0 to 1.")


class SettledEpoch(Record):
    """One epoch of a run's settlement on a chain. Amounts are in the job's smallest unit, and may be long."""

    epoch: int
    position: int = Field(description="The last entry of the log that it counts.")
    total: str = Field(description="What is owed in all since the beginning.")
    added: str = Field(description="What this epoch added to that.")
    addresses: int = Field(description="How many are paid.")
    state: str = Field(
        description="recorded: its transaction is not sent yet; pending, mined, final, failed, lost: what became of "
        "it; signed: its vouchers are, and whoever has one brings it to the chain."
    )
    transaction: str | None = Field(description="Its hash.")
    block: int | None = Field(description="Where it was mined.")


class ChainSettlement(Record):
    """How a run's credit is settled on a chain."""

    chain: str
    chain_id: int
    contract: str
    job: int
    mode: str = Field(description="How the job pays: by roots, units or vouchers.")
    token: str | None = Field(description="The ERC-20 that it pays in; null for the chain's own coin.")
    epochs: int
    items: list[SettledEpoch] = Field(description="The latest epochs, newest first.")


class CreditPage(Record):
    run: str
    position: int = Field(description="The last entry of the log that was counted.")
    unit: str
    policy: str = Field(description="What work is worth in this run, in words.")
    total_micro: int
    budget_micro: int | None = Field(description="What the run may earn in all; null for no bound.")
    pages: int = Field(description="Signed pages of the ledger, each chained to the one before.")
    nodes: list[CreditLine] = Field(description="The largest balance first.")
    settlement: ChainSettlement | None = Field(
        default=None, description="On a chain, where the run has a job there."
    )
