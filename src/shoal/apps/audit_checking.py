"""The evidence of verdicts, run again by whoever wants to know.

In flow a run's docket and the blobs beside its log; out flows whether each verdict holds here. Invariant: the base is
folded from the log, the private state is the one that the claim commits to, and the comparison is the auditors' own;
what is not stored is said to be missing, and proves nothing either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from shoal.apps.audit_reading import FoundDocket
from shoal.apps.joining import torch_trainer
from shoal.apps.logs_checking import read_blob
from shoal.apps.progress import tracked
from shoal.audit.comparing import distance
from shoal.audit.docket import Case
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.node.replaying import run_again
from shoal.replica.sharded import fold_stored
from shoal.replica.state import State, decode_state
from shoal.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    case: int
    outcome: str
    distance: float | None
    holds: bool | None
    """None where it cannot be told here."""
    why: str

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "outcome": self.outcome,
            "distance": self.distance,
            "holds": self.holds,
            "why": self.why,
        }

    def __str__(self) -> str:
        word = {True: "holds", False: "DOES NOT HOLD", None: "cannot be told"}[self.holds]
        return f"case {self.case}, {self.outcome}: {word}; {self.why}"


def check_cases(found: FoundDocket, only: int) -> list[Checked]:
    """One case, or every conviction. Raises SH-AUDIT-01, SH-MODEL-01 or what the data raises."""
    if only:
        found.case(only)
    numbers = [only] if only else [n for n, case in enumerate(found.cases, 1) if _convicted(case)]
    if not numbers:
        return []
    genesis = found.view.genesis
    assert genesis is not None
    make = torch_trainer(torch.device("cpu"), allow_code=False)
    trainer = make(found.recipe, genesis, partial(read_blob, found.log.blobs))
    return [_check(found, number, trainer) for number in tracked(numbers, "cases")]


def _convicted(case: Case) -> bool:
    return case.outcome in ("forged", "withheld")


def _check(found: FoundDocket, number: int, trainer: Trainer) -> Checked:
    case = found.case(number)
    claim, stored = case.update.claim, found.log.blobs
    missing = [blob for blob in (claim.blob, BlobId(claim.local_before)) if not stored.has(blob)]
    if missing:
        if case.outcome == "withheld":
            why = "the private state is not stored here either"
            return Checked(case=number, outcome=case.outcome, distance=None, holds=True, why=why)
        return _unknown(number, case, f"blob {missing[0][:16]} is not stored here")
    assert found.view.genesis is not None and case.update.work is not None
    try:
        base = _state_at(found, case.update.work.at)
        private = read_blob(stored, BlobId(claim.local_before))
        items = found.view.genesis.manifest.train_items
        again = run_again(trainer, found.recipe, items, case.update, base, private)
    except ShoalError as error:
        if error.code != "SH-DISK-02":
            return _unknown(number, case, error.cause)
        again = None
    rules, layout = found.recipe.strategy.fold_rules(), found.view.genesis.layout
    claimed = read_blob(stored, claim.blob)
    codec = rules.codec_at(case.update.place, case.update.codec)
    apart = distance(case.update, claimed, again, layout, codec)
    allowed = found.recipe.audit.tolerance
    holds = (apart > allowed) == (case.outcome == "forged") if case.outcome != "withheld" else None
    why = f"run again here it is {apart:.3g} from what was claimed, {allowed:g} allowed"
    return Checked(case=number, outcome=case.outcome, distance=apart, holds=holds, why=why)


def _unknown(number: int, case: Case, why: str) -> Checked:
    return Checked(case=number, outcome=case.outcome, distance=None, holds=None, why=why)


def _state_at(found: FoundDocket, at: int) -> State:
    """The state after a seal, folded from the latest saved one before it. Raises SH-BLOB-01 or -02."""
    view, stored = found.view, found.log.blobs
    assert view.genesis is not None
    rules = found.recipe.strategy.fold_rules()
    for saved in sorted((s for s in view.snapshots if s.at <= at and view.stands(s.at)), key=lambda s: -s.at):
        steps = [step for step in view.path if saved.at < step.position <= at]
        wanted = [saved.blob, *(blob for step in steps for blob, _, _ in step.sources)]
        if all(stored.has(blob) for blob in wanted):
            state = decode_state(read_blob(stored, saved.blob), view.genesis.layout)
            for step in steps:
                state = fold_stored(state, step, partial(read_blob, stored), rules)
            return state
    raise ShoalError("SH-BLOB-01", f"the state at {at} cannot be rebuilt here", "check where the blobs are")
