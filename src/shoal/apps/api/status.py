"""A run in service as people want to see it.

In flow the view of its log, its seats and its diary; out flows a `RunStatus`. Invariant: nothing is asked of
any node: what is shown is what the coordinator knows now. Pure but for reading the machine's fields.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from shoal.apps.api.diary import Diary
from shoal.apps.api.models import (
    Attested,
    NodeKey,
    NodeMeasured,
    NodeState,
    NodeStatus,
    PrivacyInfo,
    RegionInfo,
    Rejection,
    RoundLoss,
    RunState,
    RunStatus,
    RunSummary,
    SnapshotInfo,
)
from shoal.apps.printable import printable
from shoal.audit.standing import Standings as Reputations
from shoal.base.ids import NodeId
from shoal.coordinator.machine import CoordinatorMachine
from shoal.coordinator.seats import Seat
from shoal.planner.regions import FEW, find_regions
from shoal.runlog.view import Member, RunView, Step
from shoal.wire.identity import node_id


def summary(machine: CoordinatorMachine, now: float, resting: str | None = None) -> RunSummary:
    """A run in brief; `resting` is why its organiser paused it."""
    view = machine.view
    last = next((_round_loss(view, step) for step in reversed(view.path) if step.updates), None)
    return RunSummary(
        run=view.run,
        name=machine.recipe.name,
        state=_state(machine, resting),
        waiting_for=f"the organiser: {resting}" if resting else machine.waiting_for,
        round=view.round,
        rounds=machine.recipe.budget.rounds,
        nodes_live=len(machine.seats.live(now)),
        train_loss=last.train_loss if last else None,
        validation_loss=_latest_validation(view),
        stopped=view.stopped,
        paused=resting or machine.out_of_budget or None,
    )


@dataclass(frozen=True, slots=True)
class Standings:
    """What every node's state is read off, looked up once for all of them."""

    machine: CoordinatorMachine
    diary: Diary
    now: float
    ready: frozenset[NodeId]
    reputations: Reputations | None

    @classmethod
    def at(cls, machine: CoordinatorMachine, diary: Diary, now: float) -> Standings:
        return cls(
            machine,
            diary,
            now,
            frozenset(machine.seats.ready(now, machine.view)),
            machine.auditing.standings(),
        )

    def audited(self, node: NodeId) -> dict[str, int]:
        """What audits have come to for a node; nothing where there are none."""
        if self.reputations is None:
            return {}
        return {
            "reputation": self.reputations.of(node),
            "audits_passed": self.reputations.upheld(node),
            "convictions": self.reputations.convictions(node),
        }


def status(
    machine: CoordinatorMachine,
    diary: Diary,
    now: float,
    rounds: int,
    resting: str | None = None,
    *,
    with_nodes: bool = True,
) -> RunStatus:
    """Everything about a run, with the losses of the last `rounds` rounds (at least 1); its nodes may be left out."""
    view = machine.view
    if view.genesis is None:
        raise ValueError("a run in service has a genesis entry")
    saved = view.best_start()
    return RunStatus(
        **summary(machine, now, resting).model_dump(),
        coordinator=node_id(view.genesis.coordinator),
        term=view.term,
        head=view.head.position,
        head_hash=view.head.hash,
        at=view.at,
        members=len(view.members),
        parameters=view.genesis.layout.numel,
        tokens=view.totals.tokens,
        update_bytes=view.totals.update_bytes,
        attested=_last_attested(view),
        snapshot=SnapshotInfo(at=saved.at, state=saved.state, blob=saved.blob, size_bytes=saved.size_bytes),
        losses=[_round_loss(view, step) for step in [s for s in view.path if s.updates][-rounds:]],
        nodes=node_statuses(machine, diary, now) if with_nodes else [],
        rejected=[
            Rejection(
                node=seen.item.node,
                round=seen.round,
                sequence=seen.item.sequence,
                reason=printable(seen.item.reason),
            )
            for seen in diary.rejections
        ],
        plan=view.plan.reason if view.plan else None,
        regions=regions_of(machine, now),
        privacy=privacy_of(machine),
    )


def run_fields(machine: CoordinatorMachine, diary: Diary) -> dict[str, Any]:
    """What is shown of a run besides its summary, its nodes and its rounds; cheap however long the run is."""
    view = machine.view
    saved = view.best_start()
    budget = machine.recipe.budget
    return {
        "run": view.run,
        "term": view.term,
        "head": view.head.position,
        "at": view.at,
        "members": len(view.members),
        "parameters": view.genesis.layout.numel if view.genesis else 0,
        "tokens": view.totals.tokens,
        "rounds_done": view.totals.rounds,
        "began_ms": view.began_ms,
        "budget": {"rounds": budget.rounds, "tokens": budget.tokens, "seconds": budget.seconds},
        "snapshot_at": saved.at,
        "preset": machine.recipe.strategy.preset,
        "text": bool(view.genesis and view.genesis.manifest.kind == "tokens"),
        "privacy": found.model_dump() if (found := privacy_of(machine)) else None,
    }


def _state(machine: CoordinatorMachine, resting: str | None) -> RunState:
    if machine.view.stopped is not None:
        return "over" if machine.finished else "finishing"
    if resting or machine.out_of_budget:
        return "paused"
    return "running" if machine.view.plan is not None else "waiting"


def _round_loss(view: RunView, step: Step) -> RoundLoss:
    claims = [update.claim for update in step.updates]
    samples = sum(claim.samples for claim in claims)
    return RoundLoss(
        round=step.round,
        position=step.position,
        updates=len(claims),
        samples=samples,
        tokens=sum(claim.tokens for claim in claims),
        update_bytes=sum(claim.size_bytes for claim in claims),
        # Claims of private runs state none, which is 0.
        train_loss=finite(sum(claim.loss * claim.samples for claim in claims) / max(1, samples)) or None,
        validation_loss=_validation(view, step.position),
    )


def _validation(view: RunView, position: int) -> float | None:
    words = view.attested.get(position, {})
    found = [word.validation for _, word in sorted(words.items()) if word.validation is not None]
    return finite(sum(found) / len(found)) if found else None


def _latest_validation(view: RunView) -> float | None:
    for step in reversed(view.path):
        found = _validation(view, step.position)
        if found is not None:
            return found
    return None


def _last_attested(view: RunView) -> Attested | None:
    for step in reversed(view.path):
        counts = Counter(word.state for word in view.attested.get(step.position, {}).values())
        if counts:
            state, votes = max(counts.items(), key=lambda item: (item[1], item[0]))
            return Attested(at=step.position, state=state, by=votes)
    return None


def node_statuses(machine: CoordinatorMachine, diary: Diary, now: float) -> list[NodeStatus]:
    standings = Standings.at(machine, diary, now)
    return [node_status(standings, member) for _, member in sorted(machine.view.members.items())]


def node_status(standings: Standings, member: Member) -> NodeStatus:
    """One node as it stands now."""
    diary, seat = standings.diary, standings.machine.seats.by_node.get(member.node)
    beat = seat.last_beat if seat else None
    state, why = _standing(standings, member, seat)
    past = diary.chronicle.contribution(member.node)
    rejected = [printable(seen.item.reason) for seen in diary.rejections if seen.item.node == member.node]
    return NodeStatus(
        node=member.node,
        name=(seat.name if seat else "") or member.name,
        state=state,
        why=why,
        doing=printable(beat.doing) if beat else "",
        at=seat.at if seat and seat.at >= 0 else None,
        step=beat.step if beat else None,
        loss=(finite(beat.loss) or None) if beat else None,
        tokens_per_s=finite(beat.tokens_per_s) if beat else None,
        up_bytes=beat.up_bytes if beat else None,
        down_bytes=beat.down_bytes if beat else None,
        device=printable(beat.device, 80) if beat else "",
        reachable=bool(seat and seat.connected and seat.address),
        rejected=rejected[-1] if rejected else None,
        rounds_planned=past.planned,
        rounds_counted=past.accepted,
        planned=_planned(standings.machine, member.node),
        measured=_measured(standings.machine, member.node),
        epsilon=standings.machine.privacy.epsilon(member),
        key=_key(standings.machine.view, member),
        **standings.audited(member.node),
    )


def _key(view: RunView, member: Member) -> NodeKey:
    current = view.keys[member.node].current
    return "revoked" if not current else "first" if current == member.public else "replaced"


def privacy_of(machine: CoordinatorMachine) -> PrivacyInfo | None:
    """What nodes promise in this run."""
    guarantee = machine.privacy.guarantee
    if guarantee is None:
        return None
    spec = guarantee.spec
    return PrivacyInfo(
        unit=spec.unit,
        epsilon=spec.epsilon,
        delta=spec.delta,
        clip=spec.clip,
        noise=guarantee.noise,
        releases=guarantee.releases,
    )


def regions_of(machine: CoordinatorMachine, now: float) -> list[RegionInfo]:
    """As they were decided, where the coordinator begins them itself; else as they would be."""
    if decided := machine.view.regions:
        return [
            RegionInfo(members=list(one.members), hub=one.hub, reason=one.reason) for one in decided.items
        ]
    live = machine.seats.live(now)
    if len(live) > FEW:
        return []
    found = find_regions(machine.telemetry.all_facts(live), machine.telemetry.rtt_s)
    return [RegionInfo(members=list(one.members), hub=one.hub, reason=one.reason) for one in found]


def _planned(machine: CoordinatorMachine, node: NodeId) -> str | None:
    """Why its latest work is what it is."""
    plans = machine.view.planned.get(node)
    return plans[max(plans)].assignment.reason or None if plans else None


def _measured(machine: CoordinatorMachine, node: NodeId) -> NodeMeasured:
    facts, planner = machine.telemetry.facts(node), machine.planner
    health = planner.health.get(node) if planner else None
    return NodeMeasured(
        step_s=facts.step_s or None,
        rtt_s=facts.rtt_s or None,
        jitter_s=facts.jitter_s if facts.rtt_s else None,
        loss=facts.loss,
        failed=facts.failed,
        up_bytes_s=facts.up_bytes_s or None,
        down_bytes_s=facts.down_bytes_s or None,
        memory_bytes=facts.memory_bytes or None,
        uptime=facts.uptime,
        delivered=facts.delivered if health else None,
        quality=health.quality if health else None,
        speed=health.speed if health else None,
        network=health.network if health else None,
        health=health.score if health else None,
        tier=str(planner.tier(node)) if planner and health else None,
    )


def _standing(standings: Standings, member: Member, seat: Seat | None) -> tuple[NodeState, str]:
    """Whether a node is in, and why (not)."""
    machine, diary, now = standings.machine, standings.diary, standings.now
    view = machine.view
    if seat is None:
        if not member.present:
            return "gone", f"left: {diary.left.get(member.node, 'on purpose')}"
        if member.node in diary.names:
            return "gone", "left when the run was over"
        return "gone", "has not come back since the coordinator started"
    left_s = seat.lease_until - now
    if left_s <= 0:
        return "silent", f"unheard for longer than its lease of {machine.recipe.membership.lease_s:g} s"
    if not seat.connected:
        return "silent", f"its connection broke; it is waited for {math.ceil(left_s)} s more"
    if member.node in view.planned:
        return "in", f"in the plan of round {view.round}"
    if seat.paused:
        return "next", "it rests: its machine is in use, or the run is paused"
    if member.node not in standings.ready:
        stands = f"at {seat.at}" if seat.at >= 0 else "nowhere yet"
        return "behind", f"its state stands {stands}, the run's at {view.at}"
    if view.stopped is not None:
        return "next", "the run is over"
    if why := machine.note(member.node):
        return "next", why
    return "next", "ready; the next plan has it"


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
