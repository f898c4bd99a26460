"""What is proved against this very coordinator, kept with the run's log.

In flows the run's store; out flows its evidence, or the error that ends the run here. Invariant: a run under
whose key two logs were ever shown to exist is never served again from this store.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import LogStore
from shoal.runlog.chain import Equivocation, read_link
from shoal.runlog.evidence import Evidence

PROOF = "proof"
"""Where the store keeps it."""


def load_evidence(store: LogStore, run: RunId, keys: Callable[[], tuple[bytes, ...]]) -> Evidence:
    """The run's evidence against the holder of these keys. Raises SH-LOG-02 if that is a proof."""
    evidence = Evidence(run=run, coordinator=keys, keep=lambda proof: store.keep(run, PROOF, proof))
    evidence.restore(store.kept(run, PROOF).get(PROOF, b""))
    if evidence.proof is not None:
        raise accused(run, evidence.proof)
    return evidence


def accused(run: RunId, proof: Equivocation) -> ShoalError:
    position = read_link(proof.first).entry.position
    return ShoalError(
        "SH-LOG-02",
        f"run {run[:12]}: two different entries for position {position} are signed with this coordinator's key",
        "the run is stopped for good: find the second process or the copied store that used the key, and"
        " begin a new run",
    )
