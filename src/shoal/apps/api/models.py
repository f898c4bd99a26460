"""What the API answers: plain, documented values.

In flow facts from the log and the seats; out flow JSON and its schema. Invariant: a field is null where the
run does not know, never a made-up number.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RunState = Literal["waiting", "running", "paused", "finishing", "over"]
NodeState = Literal["in", "next", "behind", "silent", "gone"]
NodeKey = Literal["first", "replaced", "revoked"]


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
    paused: str | None = Field(default=None, description="Why it is paused, while it is.")


class RoundLoss(_Answer):
    round: int
    position: int = Field(description="The seal's position in the log.")
    updates: int
    samples: int
    tokens: int
    update_bytes: int = Field(description="Encoded updates of the round, together.")
    train_loss: float | None
    validation_loss: float | None


class NodeMeasured(_Answer):
    """What was measured of a node and its line, as it is expected to be next."""

    step_s: float | None = Field(description="One inner step.")
    rtt_s: float | None = Field(description="To the coordinator and back.")
    jitter_s: float | None
    loss: float = Field(description="Share of what it sent that had to be sent again.")
    failed: float = Field(description="Share of its requests to peers that failed, lately.")
    up_bytes_s: float | None
    down_bytes_s: float | None
    memory_bytes: int | None = Field(description="Free for training.")
    uptime: float = Field(description="Share of the time since it first came in which it was here.")
    delivered: float | None = Field(description="Share of its work that came in time, lately.")
    quality: float | None = Field(description="What its updates were worth, lately: a part of its health.")
    speed: float | None = Field(description="Beside the fleet's middle, 0 to 1: a part of its health.")
    network: float | None = Field(description="How reliable and near, 0 to 1: a part of its health.")
    health: float | None = Field(
        description="0 to 1, of speed, network, quality and uptime. It is null, as are its parts and `delivered`, "
        "where the plan does not rest on it."
    )
    tier: str | None = Field(description="priority, normal, reduced or excluded.")


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
    rounds_planned: int = Field(default=0, description="Rounds in whose plan it was.")
    rounds_counted: int = Field(default=0, description="Those in which its update counted.")
    planned: str | None = Field(default=None, description="Why it has the work that it has, in words.")
    measured: NodeMeasured | None = Field(default=None, description="Of its device and its line.")
    epsilon: float | None = Field(default=None, description="In a private run: what it has spent so far.")
    reputation: int | None = Field(
        default=None, description="In a run with audits: its standing, 0 to 1000; newcomers have 500."
    )
    audits_passed: int | None = Field(default=None, description="Since its last conviction.")
    convictions: int | None = Field(default=None, description="Updates that audits found forged or withheld.")
    key: NodeKey = Field(
        default="first",
        description="first: it speaks by the key that its id is the hash of; replaced: by a later one; revoked: by "
        "none, and it cannot come back.",
    )


class PrivacyInfo(_Answer):
    """What every node of a private run promises about its data."""

    unit: str = Field(description="sample or update: what is protected.")
    epsilon: float | None = Field(description="What each node may spend; null if only counted.")
    delta: float
    clip: float
    noise: float = Field(description="Its deviation, in multiples of clip.")
    releases: int | None = Field(description="Private steps (or updates) that fit into epsilon.")


class RegionInfo(_Answer):
    members: list[str]
    hub: str = Field(description="Their hub where the coordinator chose one, else who would be the best.")
    reason: str


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
    plan: str | None = Field(default=None, description="Why the open round is planned as it is, in words.")
    privacy: PrivacyInfo | None = Field(default=None, description="What nodes promise; null for nothing.")
    regions: list[RegionInfo] = Field(
        default=[],
        description="As the coordinator grouped the pool's machines; else live nodes by their measured round trips, "
        "where they are few enough to compare.",
    )


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


class BanRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    node: str = Field(min_length=1, max_length=64, description="Its name, its id, or the beginning of that.")
    seconds: float = Field(default=86_400.0, ge=0, le=1e9, description="For so long; 0 lifts a ban.")
    reason: str = Field(default="banned by the organiser", min_length=1, max_length=200)


class Banned(BaseModel):
    run: str
    node: str
    until_ms: int = Field(description="By the coordinator's clock; 0 if it is not banned any more.")
    reason: str


class RevokeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    node: str = Field(min_length=1, max_length=64, description="Its name, its id, or the beginning of that.")
    reason: str = Field(default="revoked by the organiser", min_length=1, max_length=200)


class RevokedAnswer(BaseModel):
    run: str
    node: str
    reason: str


class FundRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    add_micro: int = Field(gt=0, le=10**15, description="Millionths of a credit.")
    reason: str = Field(default="raised by the organiser", min_length=1, max_length=200)


class TicketRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    expires_s: float | None = Field(default=None, gt=0, le=10 * 366 * 86400)
    uses: int | None = Field(default=None, ge=1, le=10_000, description="How many new nodes it admits.")
    nodes: tuple[str, ...] = Field(
        default=(), max_length=100, description="Whom it admits, by id or name; all if empty."
    )


class PauseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: str = Field(default="paused by the organiser", min_length=1, max_length=200)


class ChangeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    changes: dict[str, int | float | bool | None] = Field(
        description="New values by the field's path in the recipe, such as `budget.rounds`.", max_length=16
    )


class Changed(_Answer):
    run: str
    parameters: dict[str, int | float | bool | None] = Field(
        description="Every field that may be changed while the run is on, with the value it has now."
    )


class WhoAmI(_Answer):
    scope: Literal["lend", "view", "operate", "admin"] = Field(description="What the token allows.")
    version: str
    coordinator: str


class Invitation(_Answer):
    """What a volunteer needs to know."""

    run: str
    name: str
    ticket: str
    command: str = Field(description="The line to copy.")
    install: str
    qr_svg: str = Field(description="The same line as a QR code, as SVG.")
    uses: list[str] = Field(description="What it will use of the volunteer's machine, in sentences.")


class SampleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(default="def ", max_length=500)
    tokens: int = Field(default=80, ge=1, le=200)


class SampleAnswer(_Answer):
    run: str
    at: int = Field(description="The saved state that wrote it.")
    prompt: str
    text: str


class PresetInfo(_Answer):
    name: str
    pieces: dict[str, Any] = Field(description="What it sets of the recipe's strategy.")


class RecipeForms(_Answer):
    schema_: dict[str, Any] = Field(alias="schema", description="The recipe as JSON Schema.")
    presets: list[PresetInfo]
    recipes: dict[str, dict[str, Any]] = Field(description="The recipes that ship.")
    model_config = ConfigDict(frozen=True, populate_by_name=True, serialize_by_alias=True)


class Complaint(_Answer):
    path: str = Field(description="The field, as in `budget.rounds`; empty for the recipe as a whole.")
    message: str
    code: str


class Estimate(_Answer):
    """What a run would take. Null where the recipe alone does not say it."""

    nodes: int
    rounds: int | None
    parameters: int | None
    tokens: int | None
    seconds: float | None
    node_hours: float | None
    update_bytes: int | None = Field(description="One node's update of one round.")
    upload_bytes_each: int | None
    download_bytes_each: int | None
    credits_micro: int | None
    rests_on: str = Field(description="What the time was worked out from.")


class RecipeCheck(_Answer):
    ok: bool
    complaints: list[Complaint]
    recipe: dict[str, Any] | None = Field(description="The recipe with everything filled in.")
    estimate: Estimate | None


class DatasetInfo(_Answer):
    dataset: str = Field(description="The upload's id, made of its content.")
    name: str
    kind: str
    size_bytes: int
    data: dict[str, Any] = Field(description="The recipe's `data` section for it.")


class PoolPlace(_Answer):
    run: str | None = Field(
        pattern="^[0-9a-f]{32}$", description="Which run it works for now; null for none."
    )
    ticket: str | None = Field(description="What it joins with; null to wait, or to go on as it is.")
    reason: str
    ask_again_s: float
    undecided: bool = Field(default=False, description="It goes on as it is until it has asked again.")
    region: int | None = Field(default=None, description="Its region, where the run has some.")
    hub_ticket: str | None = Field(default=None, description="The run's own, for the hub of that region.")
    probe: dict[str, str] = Field(
        default={}, description="Machines whose round trips it should measure, and where they are."
    )


class PoolMember(_Answer):
    node: str
    speed: float
    run: str | None
    reason: str
    region: int | None = Field(default=None, description="Its region, where the run has some.")
    leads: bool = Field(default=False, description="It is that region's hub.")


class Problem(BaseModel):
    """RFC 9457 problem details, with our code and what to do next."""

    title: str
    status: int
    detail: str
    code: str | None = None
    next_step: str | None = None
