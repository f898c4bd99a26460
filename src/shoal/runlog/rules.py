"""What may come next in a log: the rules for every kind of entry.

In flow a view and a body; out flows nothing, or `BadEntry` with the reason. Invariant: a rule reads the view and
changes nothing; statements of nodes inside an entry are opened by `statements`, with the same view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import (
    Assignment,
    Attestations,
    Body,
    Digests,
    Genesis,
    Joined,
    Left,
    Plan,
    Rejected,
    Rewind,
    Seal,
    Snapshot,
    Stopped,
)
from shoal.runlog.statements import most_tokens, open_attestation, require
from shoal.runlog.weights import WEIGHTS
from shoal.runlog.work import MAX_STALENESS
from shoal.wire.identity import node_id

if TYPE_CHECKING:
    from shoal.runlog.view import RunView

MAX_TEXT = 200


def check_body(view: RunView, body: Body) -> None:
    """Raise `BadEntry` unless this body may come next."""
    if (view.genesis is None) != isinstance(body, Genesis):
        raise BadEntry("is a second genesis" if view.genesis else "comes before the genesis entry")
    if view.stopped is not None and not isinstance(body, Attestations | Snapshot | Rewind):
        raise BadEntry("comes after the run was stopped")
    match body:
        case Joined():
            require(node_id(body.public) == body.node, "names a member whose id is not its key's hash")
            require(len(body.name) <= MAX_TEXT, "has a name that is too long")
        case Left():
            require(body.node in view.members, f"lets {body.node} leave, who never joined")
            require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")
        case Plan():
            _check_plan(view, body)
        case Seal():
            _check_seal(view, body)
        case Digests():
            require(view.index_of(body.seal) is not None, "has digests of a seal that does not stand")
        case Attestations():
            for item in body.items:
                open_attestation(view, item)
        case Snapshot():
            require(view.stands(body.at), f"snapshots position {body.at}, which does not stand")
        case Rewind():
            may = view.may_rewind(body.to)
            require(may, f"rewinds to {body.to}, which does not stand or is not kept")
        case Stopped():
            _check_rejected(view, body.rejected)
        case Genesis():
            pass


def _check_plan(view: RunView, plan: Plan) -> None:
    require(plan.round == view.round, f"plans round {plan.round} where {view.round} is next")
    known = bool(plan.fragments) and all(f in range(len(view.versions)) for f in plan.fragments)
    require(known, "plans unknown fragments")
    require(len(set(plan.fragments)) == len(plan.fragments), "plans one fragment twice")
    same = view.plan is None or plan.fragments == view.plan.fragments
    require(same, "plans other fragments than the round's first plan")
    require(plan.weights in WEIGHTS, "weighs by what is no measure")
    require(0 < plan.rate <= 1, f"steps at {plan.rate} of the outer rate, not above 0 and at most 1")
    same = view.plan is None or plan.rate == view.plan.rate
    require(same, "steps at another rate than the round's first plan")
    names = [assignment.node for assignment in plan.members]
    require(bool(names or view.planned), "plans no work where none is out")
    require(len(set(names)) == len(names), "assigns one member twice")
    start = view.next_counter
    for assignment in plan.members:
        require(assignment.node in view.members, f"assigns work to {assignment.node}, not a member")
        _check_assignment(assignment, start)
        start = assignment.data.start + assignment.data.count


def _check_assignment(work: Assignment, start: int) -> None:
    """Whole steps, on samples from `start` on, with bounds on their time."""
    whole = work.batch > 0 and work.steps > 0 and work.spare >= 0
    require(whole, f"assigns {work.node} less than one step")
    bounded = 0 <= work.staleness <= MAX_STALENESS and work.window_ms >= 0
    require(bounded, f"gives {work.node} no proper time for its work")
    span = work.batch * (work.steps + work.spare)
    fits = work.data.start >= start and work.data.count == span
    require(fits, f"assigns {work.node} samples that overlap others'")


def _check_seal(view: RunView, seal: Seal) -> None:
    if view.plan is None:
        raise BadEntry("seals a round that was not planned")
    require(seal.fragments == view.plan.fragments, "seals other fragments than were planned")
    require(seal.round == view.round, f"seals round {seal.round} where {view.round} is next")
    require(bool(seal.accepted), "seals no update")
    updates = [view.open_accepted(item) for item in seal.accepted]
    nodes = [update.claim.node for update in updates]
    require(len(set(nodes)) == len(nodes), "counts one node's work twice")
    _check_whole(view, seal.whole, sum(update.weight for update in updates))
    _check_rejected(view, seal.rejected)


def _check_whole(view: RunView, whole: int, counted: int) -> None:
    """A fleet is at least those who are here, and at most all who have work."""
    if whole:
        tokens = most_tokens(view)
        out = [list(plans.values()) for plans in view.planned.values()]
        most = sum(max(work.whole_weight(tokens, spare=True) for work in works) for works in out)
        require(counted <= whole <= most, f"has a fleet of weight {whole}, not {counted} to {most}")


def _check_rejected(view: RunView, rejected: tuple[Rejected, ...]) -> None:
    for rejection in rejected:
        require(rejection.node in view.members, f"rejects {rejection.node}, not a member")
        require(len(rejection.reason) <= MAX_TEXT, "has a reason that is too long")
