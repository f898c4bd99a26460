"""Which saved states are kept, and why: the last few, every so many, the best by a metric.

In flow a run as its log tells it and a recipe's rules; out flow the positions to keep, each with its reason. Invariant:
a pure function of the log and the rules; the states that joiners begin from are always among them.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import BlobId
from shoal.runlog.view import KEPT_SNAPSHOTS, RunView, SavedState
from shoal.strategy.recipe import Retention


def kept_positions(view: RunView, rules: Retention) -> dict[int, str]:
    """The positions of the saved states that the rules keep, with the reason for each."""
    standing = {saved.at: saved for saved in view.snapshots if view.stands(saved.at)}
    order = sorted(standing)
    last = max(KEPT_SNAPSHOTS, rules.last)
    reasons = dict.fromkeys(order[-last:], f"one of the last {last}")
    if rules.every:
        for at in order[:: rules.every]:
            reasons.setdefault(at, f"every {rules.every}.")
    for at in _best(view, order, rules)[: rules.best]:
        reasons.setdefault(at, f"among the best {rules.best} by {rules.metric}")
    return reasons


def kept_blobs(view: RunView, rules: Retention) -> set[BlobId]:
    """The snapshots that the rules keep."""
    positions = kept_positions(view, rules)
    return {saved.blob for saved in view.snapshots if saved.at in positions and _stands(view, saved)}


def _stands(view: RunView, saved: SavedState) -> bool:
    return view.stands(saved.at)


def _best(view: RunView, order: Sequence[int], rules: Retention) -> list[int]:
    """Those that have the metric, the lowest first; of equals the later."""
    read = _validation if rules.metric == "validation" else _loss
    found = [(value, at) for at in order if (value := read(view, at)) is not None]
    return [at for _, at in sorted(found, key=lambda item: (item[0], -item[1]))]


def _validation(view: RunView, at: int) -> float | None:
    words = sorted(view.attested.get(at, {}).items())
    return next((word.validation for _, word in words if word.validation is not None), None)


def _loss(view: RunView, at: int) -> float | None:
    step = view.step_at(at)
    updates = step.updates if step else ()
    whole = sum(update.weight for update in updates)
    return sum(update.claim.loss * update.weight for update in updates) / whole if whole else None
