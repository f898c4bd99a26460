"""The pool over HTTP: a machine offers itself and is told which run it works for.

In flow signed offers; out flow tickets. Invariant: only the holder of a node's key offers that node, and an older offer
never replaces a newer one; nobody is given a ticket of a run that is paused, over, or pays less than it asks for.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from shoal.apps.api.desk import Desk
from shoal.apps.api.models import PoolMember, PoolPlace
from shoal.apps.api.regional import has_regions
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.served import Run
from shoal.credit.spec import MICRO
from shoal.planner.matching import Job, Matching, Worker
from shoal.planner.pool import ASK_AGAIN_S, MATCHED_S, MOST, SOON
from shoal.planner.region_pool import Word
from shoal.wire.identity import Identity, node_id, verify

DOMAIN = "PoolOffer"
REMEMBERED = 4 * MOST
"""Nodes whose last offer's time is known, so that it does not count twice."""
RunPrefix = Annotated[str, Field(max_length=64)]
NodeHex = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
Trip = Annotated[float, Field(ge=0, le=86_400)]
HEX64, HEX128 = "^[0-9a-f]{64}$", "^[0-9a-f]{128}$"


class PoolOffer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    public: str = Field(pattern=HEX64, description="The node's Ed25519 public key, in hex.")
    coordinator: str = Field(max_length=40, description="The id of the coordinator that is asked.")
    at_ms: int = Field(ge=0, le=1 << 53, description="By its own clock; later offers have more.")
    speed: float = Field(ge=0, le=1e9, description="How much it computes: GFLOP/s of a matrix product.")
    memory_bytes: int = Field(ge=0, le=1 << 60)
    up_bytes_s: float = Field(default=0.0, ge=0, le=1e12, description="What it may send; 0 if unknown.")
    least_pay_micro: int = Field(default=0, ge=0, le=10**12, description="For a unit of work.")
    prefers: list[RunPrefix] = Field(default=[], max_length=64, description="Runs, the dearest first.")
    hub_address: str = Field(default="", max_length=260, description="Where it would be a hub; empty if not.")
    label: str = Field(default="", max_length=64, description="The region that it is in, if it says so.")
    trips: dict[NodeHex, Trip] = Field(
        default={}, max_length=16, description="Round trips to others, in seconds; 0 if not reached."
    )
    serves: int = Field(
        default=0, ge=0, le=1 << 53, description="The region that it is the hub of, open now."
    )
    region_ticket: str = Field(default="", max_length=4096, description="That region's ticket.")
    leaves: bool = Field(default=False, description="It is not to be had any more.")
    signature: str = Field(pattern=HEX128, description="Over all the rest as JSON with sorted keys.")


def signed_offer(identity: Identity, values: dict[str, Any]) -> dict[str, Any]:
    """The body of an offer."""
    said = {**values, "public": identity.public.hex()}
    return {**said, "signature": identity.sign(DOMAIN, _words(said)).hex()}


def lending(desk: Desk) -> APIRouter:
    routes = APIRouter()
    latest: dict[NodeId, int] = {}

    @routes.post("/pool", summary="Offer a machine; the answer says which run it works for")
    async def offer(said: PoolOffer) -> PoolPlace:
        worker = _worker(said, desk.service.identity.node)
        if latest.get(worker.node, -1) >= said.at_ms:
            raise ShoalError("SH-POOL-02", "this offer is older than the last one", "offer it anew")
        latest.pop(worker.node, None)
        latest[worker.node] = said.at_ms
        if len(latest) > REMEMBERED:
            del latest[next(iter(latest))]
        if said.leaves:
            desk.pool.withdraw(worker.node)
            desk.regions.withdraw(worker.node)
            return PoolPlace(run=None, ticket=None, reason="it left", ask_again_s=ASK_AGAIN_S)
        word = _word(worker, said)
        desk.regions.heard(word)
        run, reason = desk.pool.offer(worker, jobs_of(desk), desk.service.host.clock.now())
        desk.regions.withdraw(worker.node, but=run)
        if run is not None and has_regions(desk.service.runs[run]):
            return await desk.regions.place(run, word, await desk.standing_ticket(run))
        ticket = await desk.standing_ticket(run) if run else None
        return PoolPlace(
            run=run,
            ticket=ticket,
            reason=reason,
            ask_again_s=MATCHED_S if reason == SOON else ASK_AGAIN_S,
            undecided=reason == SOON,
        )

    return routes


def pooled(desk: Desk) -> APIRouter:
    routes = APIRouter()

    @routes.get("/pool", summary="Machines that were lent to the pool, and which run each works for")
    async def members() -> list[PoolMember]:
        now = desk.service.host.clock.now()
        desk.pool.forget(now)
        found = desk.pool.match(jobs_of(desk), now)
        return [_member(desk, worker, found) for worker in desk.pool.workers]

    return routes


def _member(desk: Desk, worker: Worker, found: Matching) -> PoolMember:
    run = found.run_of.get(worker.node)
    place = desk.regions.shown(run, worker.node) if run else None
    return PoolMember(
        node=worker.node,
        speed=worker.speed,
        run=run,
        reason=place.reason if place else found.reasons.get(worker.node, "no run wants anybody now"),
        region=place.region if place else None,
        leads=place is not None and place.leads,
    )


def jobs_of(desk: Desk) -> list[Job]:
    """The runs that want somebody now, or need those they have; those of regions, once somebody is lent who may be
    a hub."""
    wanting = [
        (run, served)
        for run, served in sorted(desk.service.runs.items())
        if _wants(served) and (not has_regions(served) or desk.regions.possible_in(served))
    ]
    return [_job(run, served) for run, served in wanting]


def _wants(served: Run) -> bool:
    masked = served.machine.recipe.masking.on
    return not served.machine.finished and served.paused is None and not masked


def _job(run: RunId, served: Run) -> Job:
    recipe = served.machine.recipe
    return Job(
        run=run,
        room=recipe.pool.room,
        priority=recipe.pool.priority,
        memory_bytes=recipe.pool.memory_bytes,
        up_bytes_s=recipe.pool.up_bytes_s,
        pay=recipe.credit.price_micro / MICRO,
        ending=served.machine.view.stopped is not None,
        members=_members(served) if served.machine.view.stopped is not None else frozenset(),
    )


def _members(served: Run) -> frozenset[NodeId]:
    """Who has a seat in the run, or a place in one of its regions."""
    regions = served.machine.view.regions
    return frozenset(served.machine.seats.by_node).union(
        *(item.members for item in (regions.items if regions else ()))
    )


def _worker(said: PoolOffer, coordinator: NodeId) -> Worker:
    public = bytes.fromhex(said.public)
    words = _words(said.model_dump(exclude={"signature"}, exclude_unset=True))
    if said.coordinator != coordinator or not verify(public, DOMAIN, words, bytes.fromhex(said.signature)):
        raise ShoalError(
            "SH-POOL-02", "this offer is not signed by the node, for this coordinator", "offer it anew"
        )
    return Worker(
        node=node_id(public),
        speed=said.speed,
        memory_bytes=said.memory_bytes,
        up_bytes_s=said.up_bytes_s,
        least_pay=said.least_pay_micro / MICRO,
        prefers=tuple(RunId(run) for run in said.prefers),
    )


def _word(worker: Worker, said: PoolOffer) -> Word:
    return Word(
        node=worker.node,
        address=said.hub_address,
        label=said.label,
        up_bytes_s=worker.up_bytes_s,
        trips={NodeId(node): trip for node, trip in said.trips.items()},
        serves=said.serves,
        ticket=said.region_ticket,
    )


def _words(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()
