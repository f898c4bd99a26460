"""How a run's credit is settled on a chain, where it is: epochs, and what became of their transactions.

In flow `chain.json` of the coordinator's home and what `shoal chain settle` keeps in the store; out flows a table.
Invariant: it only looks: no chain is asked, no key is read, and nothing is shown that was not kept before it was sent.
"""

from __future__ import annotations

from pathlib import Path

from shoal.apps.api.records import ChainSettlement, SettledEpoch
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import LogStore
from shoal.chain.config import FILE, ChainConfig, read_config
from shoal.chain.epochs import EpochRecord, kept_records
from shoal.chain.modes import mode_called
from shoal.chain.outbox import Outgoing, sent_from

MOST_EPOCHS = 200


def settlement(root: Path, store: LogStore, run: RunId) -> ChainSettlement | None:
    """A run's latest epochs, newest first; None where it has no job on a chain. Blocks."""
    config = _config(root)
    terms = config.jobs.get(run) if config else None
    if config is None or terms is None:
        return None
    records = kept_records(store, run, terms.job)
    sent = {int(item.key.split(".")[2]): item for item in sent_from(store, f"root.{terms.job}.")}
    submits = mode_called(terms.mode).submit is not None
    before = {record.epoch: earlier for record, earlier in zip(records[1:], records, strict=False)}
    return ChainSettlement(
        chain=config.chain.name,
        chain_id=config.chain.chain_id,
        contract=config.rewards,
        job=terms.job,
        mode=terms.mode,
        token=terms.token or None,
        epochs=len(records),
        items=[
            _epoch(record, before.get(record.epoch), sent.get(record.epoch), submits)
            for record in reversed(records[-MOST_EPOCHS:])
        ],
    )


def _config(root: Path) -> ChainConfig | None:
    if not (root / FILE).exists():
        return None
    try:
        return read_config(root)
    except ShoalError:
        return None  # `shoal chain` says what is wrong with the file.


def _epoch(
    record: EpochRecord, before: EpochRecord | None, sent: Outgoing | None, submits: bool
) -> SettledEpoch:
    return SettledEpoch(
        epoch=record.epoch,
        position=record.position,
        total=str(record.total),
        added=str(record.total - (before.total if before else 0)),
        addresses=len(record.amounts),
        state=sent.state if sent else "signed" if not submits else "recorded",
        transaction=(sent.mined_hash or sent.hashes[-1]) if sent else None,
        block=sent.block or None if sent else None,
    )
