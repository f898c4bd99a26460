"""What convinces a process that its coordinator lies, and what does not."""

import pytest

from shoal.base.errors import ShoalError
from shoal.runlog.chain import Equivocation
from shoal.runlog.evidence import Evidence, encode_proof, read_proof

from .proofs import ONE, PROOF, TWO, WORTHLESS
from .small_log import COORDINATOR, RUN


def _evidence(kept: list[bytes], keys: tuple[bytes, ...] = (COORDINATOR.public,)) -> Evidence:
    return Evidence(run=RUN, coordinator=lambda: keys, keep=kept.append)


def test_a_proof_is_kept_once_and_handed_on() -> None:
    kept: list[bytes] = []
    evidence = _evidence(kept)
    assert evidence.proof is None and evidence.encoded == b""
    assert evidence.take(PROOF) and evidence.take(encode_proof(Equivocation(TWO, ONE)))
    assert kept == [PROOF] and evidence.encoded == PROOF
    assert evidence.proof == Equivocation(ONE, TWO)


@pytest.mark.parametrize("why", sorted(WORTHLESS))
def test_what_proves_nothing_has_no_effect(why: str) -> None:
    kept: list[bytes] = []
    evidence = _evidence(kept)
    assert not evidence.take(WORTHLESS[why])
    evidence.restore(WORTHLESS[why])
    assert evidence.proof is None and evidence.encoded == b"" and kept == []
    assert read_proof(WORTHLESS[why], RUN, COORDINATOR.public) is None


def test_nothing_is_proved_while_the_coordinators_key_is_unknown() -> None:
    assert not _evidence([], keys=()).take(PROOF)


def test_what_was_kept_counts_after_a_restart() -> None:
    kept: list[bytes] = []
    evidence = _evidence(kept)
    evidence.restore(PROOF)
    assert evidence.proof == Equivocation(ONE, TWO) and kept == []


def test_what_cannot_be_kept_is_not_acted_on() -> None:
    def full(_: bytes) -> None:
        raise ShoalError("SH-DISK-01", "full", "free some space")

    evidence = Evidence(run=RUN, coordinator=lambda: (COORDINATOR.public,), keep=full)
    with pytest.raises(ShoalError):
        evidence.take(PROOF)
    assert evidence.proof is None
