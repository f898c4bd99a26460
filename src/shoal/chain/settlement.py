"""Settles a run's credit: log -> ledger -> epoch records -> roots on the chain.

In flow the run's log and the chain's state; out flow transactions through the outbox. Invariant: an epoch's record is
durable before its root is signed, the signed root before it is sent, and what the contract says is done is done: so the
process may be killed, the RPC may vanish and the chain may be rolled back at any moment, and every epoch is settled
once. Nothing here is waited for by training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.chain.config import ChainConfig, check_chain, check_contract, domain_of, wrong_chain
from shoal.chain.epochs import EpochRecord, boundaries, keep_record, kept_records, make_record
from shoal.chain.job import RewardsView, Room
from shoal.chain.modes import mode_called
from shoal.chain.outbox import FAILED, FINAL, LOST, MINED, Outgoing, SqlOutbox
from shoal.chain.payouts import kept_payouts
from shoal.chain.sender import Call, Sender
from shoal.chain.words import sign_voucher
from shoal.credit.ledger import Bookkeeper, StoredPage


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the settlement of a run stands."""

    epochs: int
    """That the log has."""
    settled: int
    """That the contract has."""
    waiting: ShoalError | None = None
    """Why it does not go on now, if it does not."""

    @property
    def done(self) -> bool:
        return self.settled >= self.epochs


class Settlement:
    """One run. Call `check` once, then `step` again and again."""

    def __init__(
        self,
        *,
        run: RunId,
        config: ChainConfig,
        books: Bookkeeper,
        outbox: SqlOutbox,
        sender: Sender,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        if run not in config.jobs:
            raise ShoalError(
                "SH-CHAIN-11", f"run {run[:12]} has no job on the chain", "run `shoal chain job`"
            )
        self._run, self._config, self._terms = run, config, config.jobs[run]
        self._mode = mode_called(self._terms.mode)
        self._books, self._outbox, self._sender = books, outbox, sender
        self._reached = reached
        self._view = RewardsView(sender.rpc, config.rewards)
        self._pages: list[StoredPage] = []
        self._roots: dict[int, bytes] = {}
        self.records: list[EpochRecord] = kept_records(outbox, run, self._terms.job)

    def check(self, now_s: float = 0.0) -> None:
        """That this is the right chain, and the job is ours. Raises SH-CHAIN-05, -07 or -09."""
        check_chain(self._sender.rpc, self._config.chain, self._config.genesis)
        # Contract or job may be among what a rollback took, and is sent again.
        self._sender.push(now_s)
        check_contract(self._sender.rpc, self._config)
        fields = self._view.job(self._terms.job)
        if fields["mode"] != self._mode.number:
            raise wrong_chain(f"job {self._terms.job} does not pay by {self._mode.name}, as chain.json says")
        if fields["coordinator"].lower() != self._sender.account.address.lower():
            raise ShoalError(
                "SH-CHAIN-09",
                f"job {self._terms.job} has another coordinator than {self._sender.account.address}",
                "settle with the key that the job names",
            )

    def step(self, now_s: float) -> Progress:
        """As much as can be done now. Raises SH-CHAIN-04 when no RPC answers, and then nothing is lost."""
        self._pages += self._books.catch_up()
        self._make_records()
        # What is under way is looked at before the contract is: it can only have more by then.
        self._sender.push(now_s)
        room = self._view.room(self._terms.job)
        if self._mode.submit is None:
            # Whoever has a voucher brings it to the chain.
            waiting = room.refuses(self.records[-1].total) if self.records else None
            return Progress(epochs=len(self.records), settled=len(self.records), waiting=waiting)
        self._check_standing(room.epoch)
        sent = self._sent()
        self._mend(room, sent)
        waiting = self._post(room, self._sent())
        if waiting is None and len(self.records) > room.epoch:
            self._sender.push(now_s)
        return Progress(epochs=len(self.records), settled=room.epoch, waiting=waiting)

    def _make_records(self) -> None:
        found = boundaries(self._pages, self._terms.rounds_per_epoch, self._books.over)
        addresses = kept_payouts(self._outbox, self._run)
        for boundary in found[len(self.records) :]:
            known = self.records[-1] if self.records else None
            record = make_record(self._run, self._terms, boundary, addresses, known)
            if not record.amounts:
                break  # Nobody has stated an address yet; the first record will have it all.
            record = self._with_vouchers(record)
            self._reached("settlement.before-record")
            keep_record(self._outbox, record)
            self.records.append(record)
            self._reached("settlement.record")

    def _with_vouchers(self, record: EpochRecord) -> EpochRecord:
        if self._mode.submit is not None:
            return record
        domain = domain_of(self._config.chain.chain_id, self._config.rewards)
        account = self._sender.account
        signed = {
            address: "0x" + sign_voucher(account, domain, record.job, address, amount, record.epoch).hex()
            for address, amount in record.amounts.items()
        }
        return msgspec.structs.replace(record, vouchers=signed)

    def _check_standing(self, settled: int) -> None:
        """The last root on the chain must be ours."""
        if settled > len(self.records):
            made = len(self.records)
            raise wrong_chain(f"job {self._terms.job} has {settled} epochs, and this run made {made}")
        by_root = self._mode.name == "roots"
        if by_root and settled and self._view.root(self._terms.job, settled) != self._root(settled):
            raise wrong_chain(f"the root of epoch {settled} on the chain is not the one that this run made")

    def _root(self, epoch: int) -> bytes:
        if epoch not in self._roots:
            self._roots[epoch] = self.records[epoch - 1].tree().root
        return self._roots[epoch]

    def _sent(self) -> dict[int, Outgoing]:
        """The latest transaction for every epoch's root."""
        items = self._outbox.find(self._sender.account.address, f"root.{self._terms.job}.")
        return {int(item.key.split(".")[2]): item for item in items}

    def _mend(self, room: Room, sent: dict[int, Outgoing]) -> None:
        """Roots that were done and that the contract does not have: rolled back, they are sent again as they are;
        fallen in a dispute, they are signed anew."""
        missing = [
            item for epoch, item in sent.items() if epoch > room.epoch and item.state in (FINAL, MINED)
        ]
        mined = {item.nonce for item in missing if self._is_mined(item)}
        if gone := [item for item in missing if item.nonce not in mined]:
            self._sender.reopen(gone)
        fallen = [item for item in missing if item.nonce in mined and item.state == FINAL]
        if fallen and not room.disputed:
            again = [msgspec.structs.replace(item, state=FAILED) for item in fallen]
            self._outbox.put(self._sender.account.address, again)

    def _is_mined(self, item: Outgoing) -> bool:
        answers = self._sender.rpc.batch([("eth_getTransactionReceipt", [hashed]) for hashed in item.hashes])
        return any(answer.result for answer in answers)

    def _post(self, room: Room, sent: dict[int, Outgoing]) -> ShoalError | None:
        """Sign the roots that are due and were not signed, or whose transaction came to nothing."""
        due = self.records[room.epoch : room.epoch + self._mode.ahead]
        fresh = [r for r in due if r.epoch not in sent or sent[r.epoch].state in (FAILED, LOST)]
        whole = [record for record in fresh if room.refuses(record.total) is None]
        if fresh and not whole:
            return room.refuses(fresh[0].total)
        calls = []
        for record in whole:
            # Only the next epoch's root can be estimated; the others cost what the last one did.
            is_next = record.epoch == room.epoch + 1
            gas = 0 if is_next else self._gas_of(sent.get(room.epoch + 1) or sent.get(room.epoch))
            if gas or is_next:
                calls.append(self._call(record, sent.get(record.epoch), gas))
        self._sender.post(calls)
        return None

    def _gas_of(self, item: Outgoing | None) -> int:
        return item.gas * 100 // (100 + self._config.chain.gas_margin_percent) if item else 0

    def _call(self, record: EpochRecord, before: Outgoing | None, gas: int) -> Call:
        assert self._mode.submit is not None
        interface = self._view.interface
        data = self._mode.submit(record, self.records[record.epoch - 2] if record.epoch > 1 else None)
        attempt = int(before.key.split(".")[3]) + 1 if before else 0
        key = f"root.{record.job}.{record.epoch:08}.{attempt}"
        return Call(key=key, to=self._config.rewards, data=data, interface=interface, gas=gas)
