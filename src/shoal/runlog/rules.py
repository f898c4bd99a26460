"""What may come next in a log: the rules for every kind of entry.

In flow a view and a body; out flows nothing, or `BadEntry` with the reason. Invariant: a rule reads the view and
changes nothing; statements of nodes inside an entry are opened by `statements`, with the same view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import (
    Assignment,
    Attestation,
    Attestations,
    Audits,
    Ban,
    Body,
    Digests,
    Funded,
    Genesis,
    Graft,
    Joined,
    Left,
    Plan,
    Regions,
    Rejected,
    Revoked,
    Rewind,
    Rotated,
    Screening,
    Seal,
    Snapshot,
    Stopped,
    Verdict,
)
from shoal.runlog.key_rules import check_founder, check_key, check_revoked, check_rotated
from shoal.runlog.sharding import MAX_FOLDERS, MAX_SHARDS, agreed
from shoal.runlog.statements import (
    SPARE_BYTES,
    is_hash,
    is_node,
    most_tokens,
    open_attestation,
    open_folding,
    open_screening,
    open_verdict,
    require,
)
from shoal.runlog.weights import WEIGHTS
from shoal.runlog.work import MAX_STALENESS
from shoal.wire.identity import node_id

if TYPE_CHECKING:
    from shoal.runlog.view import RunView, Update

MAX_TEXT = 200
MOST_MS = 1 << 53
MAX_PLAN_TEXT = 4000
MAX_THIN = 64
MAX_CHOICES = 8
MOST_FUNDS_MICRO = 10**15
MOST_IN_REGIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What nodes state in an entry, checked: opened once, for the rule and for the view that takes it."""

    updates: tuple[Update, ...] = ()
    words: tuple[Attestation, ...] = ()
    audits: tuple[Screening | Verdict, ...] = ()


NOTHING = Opened()


def check_body(view: RunView, body: Body) -> Opened:
    """Raise `BadEntry` unless this body may come next; the nodes' statements in it, opened."""
    if (view.genesis is None) != isinstance(body, Genesis):
        raise BadEntry("is a second genesis" if view.genesis else "comes before the genesis entry")
    if view.stopped is not None and not isinstance(body, Attestations | Snapshot | Rewind | Rotated):
        raise BadEntry("comes after the run was stopped")
    match body:
        case Joined():
            require(node_id(body.public) == body.node, "names a member whose id is not its key's hash")
            check_key(view, body)
            require(len(body.name) <= MAX_TEXT, "has a name that is too long")
        case Left():
            require(body.node in view.members, "lets {} leave, who never joined", body.node)
            require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")
        case Plan():
            _check_plan(view, body)
        case Seal():
            return Opened(updates=_check_seal(view, body))
        case Digests():
            _check_digests(view, body)
        case Attestations():
            return Opened(words=tuple(open_attestation(view, item) for item in body.items))
        case Snapshot():
            require(view.stands(body.at), "snapshots position {}, which does not stand", body.at)
        case Graft():
            _check_graft(view, body)
        case Rewind():
            may = view.may_rewind(body.to)
            require(may, "rewinds to {}, which does not stand or is not kept", body.to)
        case Stopped():
            require(view.unsettled is None, "stops the run before the digests of its last seal")
            _check_rejected(view, body.rejected)
        case Funded():
            bounded = body.add_micro > 0 and view.funded_micro + body.add_micro <= MOST_FUNDS_MICRO
            require(bounded, "funds the run with {}, not with something up to a bound", body.add_micro)
            require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")
        case Audits():
            screened = tuple(open_screening(view, item) for item in body.screenings)
            return Opened(audits=(*screened, *(open_verdict(view, item) for item in body.verdicts)))
        case Ban():
            sound = is_node(body.node) and 0 <= body.until_ms <= MOST_MS
            require(sound, "bans what is no node, or until no time")
            require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")
        case Rotated():
            check_rotated(view, body)
        case Revoked():
            check_revoked(view, body)
        case Regions():
            _check_regions(view, body)
        case Genesis():
            check_founder(body)
    return NOTHING


def _check_plan(view: RunView, plan: Plan) -> None:
    require(view.unsettled is None, "plans a round before the digests of the last seal")
    require(plan.round == view.round, "plans round {} where {} is next", plan.round, view.round)
    known = bool(plan.fragments) and all(f in range(len(view.versions)) for f in plan.fragments)
    require(known, "plans unknown fragments")
    require(len(set(plan.fragments)) == len(plan.fragments), "plans one fragment twice")
    same = view.plan is None or plan.fragments == view.plan.fragments
    require(same, "plans other fragments than the round's first plan")
    require(plan.weights in WEIGHTS, "weighs by what is no measure")
    require(len(plan.reason) <= MAX_PLAN_TEXT, "has a reason that is too long")
    require(0 < plan.rate <= 1, "steps at {} of the outer rate, not above 0 and at most 1", plan.rate)
    same = view.plan is None or plan.rate == view.plan.rate
    require(same, "steps at another rate than the round's first plan")
    _check_sharding(view, plan)
    names = [assignment.node for assignment in plan.members]
    require(bool(names or view.planned), "plans no work where none is out")
    require(len(set(names)) == len(names), "assigns one member twice")
    start = view.next_counter
    for assignment in plan.members:
        require(assignment.node in view.members, "assigns work to {}, not a member", assignment.node)
        _check_assignment(assignment, start)
        start = assignment.data.start + assignment.data.count


def _check_sharding(view: RunView, plan: Plan) -> None:
    """Some folders and some shards, or neither, for the whole round."""
    bounded = 0 < plan.folders <= MAX_FOLDERS and 0 < plan.shards <= MAX_SHARDS
    require(bounded or plan.folders == plan.shards == 0, "plans no proper folding through digests")
    same = view.plan is None or (plan.folders, plan.shards) == (view.plan.folders, view.plan.shards)
    require(same, "plans other digests than the round's first plan")
    timely = not plan.folders or not any(member.staleness for member in plan.members)
    require(timely, "plans digests of work that may come late, and of another cut")


def _check_digests(view: RunView, body: Digests) -> None:
    """Of the seal that waits for them, and just what the folders' own words come to."""
    step = view.unsettled
    if step is None or step.position != body.seal:
        raise BadEntry("has digests of a seal that does not wait for any")
    words = [open_folding(view, signed) for signed in body.words]
    nodes = [word.node for word in words]
    require(len(set(nodes)) == len(nodes), "has two words of one folder")
    require(body.items == agreed(step, words), "has other digests than its folders signed for")
    require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")


def _check_graft(view: RunView, graft: Graft) -> None:
    """News of this region's own parent, newer than the last, between two rounds of everybody."""
    require(view.genesis is not None and bool(view.genesis.parent), "grafts onto a run that is no region")
    require(view.plan is None and view.unsettled is None, "grafts in the middle of a round")
    require(not view.path or not view.path[-1].pairs, "grafts between rounds of pairs")
    require(graft.parent.position > view.grafted, "grafts what is not new")
    numel = view.genesis.layout.numel if view.genesis else 0
    sound = is_hash(graft.blob) and is_hash(graft.parent.hash)
    require(sound and 0 < graft.size_bytes <= 8 * numel + SPARE_BYTES, "has a malformed graft")


def _check_regions(view: RunView, body: Regions) -> None:
    """Everybody is in one region at most, its hub and heirs are of it, and a number means one hub for ever."""
    require(view.genesis is None or not view.genesis.parent, "groups a region's own members")
    everybody = [node for item in body.items for node in item.members]
    require(len(everybody) <= MOST_IN_REGIONS, "groups too many machines")
    require(all(map(is_node, everybody)), "groups what is no node")
    require(len(set(everybody)) == len(everybody), "has a machine in two regions")
    known = {item.number: item.hub for item in view.regions.items} if view.regions else {}
    numbers = [item.number for item in body.items]
    require(len(set(numbers)) == len(numbers), "has two regions of one number")
    for item in body.items:
        led = item.hub in item.members and {*item.heirs} <= {*item.members} - {item.hub}
        require(led, "has region {} led by strangers", item.number)
        same = known.get(item.number) == item.hub
        require(same or item.number > view.last_region, "gives region {} another hub", item.number)
        require(len(item.reason) <= MAX_TEXT, "has a reason that is too long")
    require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")


def _check_assignment(work: Assignment, start: int) -> None:
    """Whole steps, on samples from `start` on, with bounds on their time."""
    whole = work.batch > 0 and work.steps > 0 and work.spare >= 0
    require(whole, "assigns {} less than one step", work.node)
    bounded = 0 <= work.staleness <= MAX_STALENESS and work.window_ms >= 0
    require(bounded, "gives {} no proper time for its work", work.node)
    require(1 <= work.thin <= MAX_THIN, "thins the update of {} by {}", work.node, work.thin)
    require(0 <= work.codec <= MAX_CHOICES, "has the update of {} encoded by no codec", work.node)
    told = work.expected_ms >= 0 and len(work.reason) <= MAX_TEXT
    require(told, "gives {} no proper reason for its work", work.node)
    span = work.batch * (work.steps + work.spare)
    fits = work.data.start >= start and work.data.count == span
    require(fits, "assigns {} samples that overlap others'", work.node)


def _check_seal(view: RunView, seal: Seal) -> tuple[Update, ...]:
    if view.plan is None:
        raise BadEntry("seals a round that was not planned")
    require(seal.fragments == view.plan.fragments, "seals other fragments than were planned")
    require(seal.round == view.round, "seals round {} where {} is next", seal.round, view.round)
    require(bool(seal.accepted), "seals no update")
    updates = tuple(view.open_accepted(item) for item in seal.accepted)
    nodes = [update.claim.node for update in updates]
    require(len(set(nodes)) == len(nodes), "counts one node's work twice")
    _check_whole(view, seal.whole, sum(update.weight for update in updates))
    timely = not seal.pairs or (not seal.whole and not any(update.ages for update in updates))
    require(timely, "pairs up late updates")
    require(not (seal.pairs and view.plan.folders), "pairs up updates that were cut for digests")
    _check_rejected(view, seal.rejected)
    return updates


def _check_whole(view: RunView, whole: int, counted: int) -> None:
    """A fleet is at least those who are here, and at most all who have work."""
    if whole:
        tokens = most_tokens(view)
        out = [list(plans.values()) for plans in view.planned.values()]
        most = sum(max(work.whole_weight(tokens, spare=True) for work in works) for works in out)
        require(counted <= whole <= most, "has a fleet of weight {}, not {} to {}", whole, counted, most)


def _check_rejected(view: RunView, rejected: tuple[Rejected, ...]) -> None:
    for rejection in rejected:
        require(rejection.node in view.members, "rejects {}, not a member", rejection.node)
        require(len(rejection.reason) <= MAX_TEXT, "has a reason that is too long")
