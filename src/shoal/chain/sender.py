"""Sends what is in the outbox, and follows it until it is final.

In flow calls with keys; out flow transactions in their states. Invariant: nothing is broadcast that is not stored; the
same bytes are broadcast again until they are mined deeply enough; a fee is raised by signing the same nonce anew, so
that at most one version can ever count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.base.errors import ShoalError
from shoal.chain.contracts import Interface
from shoal.chain.outbox import FAILED, FINAL, LOST, MINED, PENDING, Outgoing, SqlOutbox
from shoal.chain.presets import Chain
from shoal.chain.rpc import Refused, Rpc
from shoal.chain.signing import Account, Transaction, transaction_hash

BUMP_BLOCKS = 12
"""A transaction that waits so long is offered again for more."""
BUMP_PERCENT = 25
MOST_BUMPS = 10
RESEND_BLOCKS = 3
FIRST = 32
"""Transactions of the lowest nonces, which all others wait for."""
_KNOWN = ("already known", "already imported", "nonce too low", "already exists", "underpriced")
"""What nodes say of a transaction that they have, or whose nonce is taken: the receipt will tell."""
_CHEAP = ("base fee", "max fee per gas", "fee cap")
"""What they say of one that offers too little by now: it will be offered for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What to do on the chain, and the key under which it is done once."""

    key: str
    to: str
    data: bytes
    interface: Interface
    value: int = 0
    gas: int = 0
    """What it needs, where that is known; 0 to have it estimated."""


@dataclass(frozen=True, slots=True)
class Fees:
    max_fee: int
    priority_fee: int


@dataclass(frozen=True, slots=True)
class Where:
    """Where the chain is: its last block, and how many transactions of the account it has."""

    head: int
    count: int


class Sender:
    """One account on one chain."""

    def __init__(
        self,
        rpc: Rpc,
        chain: Chain,
        account: Account,
        outbox: SqlOutbox,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self.rpc, self.chain, self.account = rpc, chain, account
        self._outbox, self._reached = outbox, reached
        self._sent_at: dict[str, float] = {}
        """By hash, when this process last broadcast it."""
        self._first_sent: dict[int, float] = {}
        """By nonce, since when this process waits for it."""

    # --- posting -----------------------------------------------------------------------------------------

    def post(self, calls: Sequence[Call]) -> list[Outgoing]:
        """Sign and store the calls whose keys are new. Raises SH-CHAIN-08 or SH-CHAIN-10."""
        known = self._outbox.keys(self.account.address)
        fresh = [call for call in calls if call.key not in known]
        if not fresh:
            return []
        gas = self._gas(fresh)
        fees = self._fees()
        self._check_balance(sum(g * fees.max_fee for g in gas) + sum(call.value for call in fresh))
        nonce = max(self._outbox.next_nonce(self.account.address), self.nonce())
        items = [
            self._signed(call, nonce + place, limit, fees)
            for place, (call, limit) in enumerate(zip(fresh, gas, strict=True))
        ]
        self._reached("outbox.before-store")
        self._outbox.add(self.account.address, items)
        self._reached("outbox.stored")
        return items

    def _gas(self, calls: Sequence[Call]) -> list[int]:
        unknown = [call for call in calls if not call.gas]
        asked = iter(self.rpc.batch([("eth_estimateGas", [self._request(call)]) for call in unknown]))
        limits = []
        for call in calls:
            needed = call.gas
            if not needed:
                answer = next(asked)
                if answer.refused is not None:
                    raise _refused(call, answer.refused)
                needed = int(answer.result, 16)
            limits.append(needed + needed * self.chain.gas_margin_percent // 100)
        return limits

    def _request(self, call: Call) -> dict[str, Any]:
        request = {"from": self.account.address, "data": "0x" + call.data.hex(), "value": hex(call.value)}
        return {**request, "to": call.to} if call.to else request

    def _fees(self) -> Fees:
        """Twice the base fee and a tip: enough for the fee to rise for several blocks."""
        block, tip = self.rpc.batch(
            [("eth_getBlockByNumber", ["latest", False]), ("eth_maxPriorityFeePerGas", [])]
        )
        base = int((block.result or {}).get("baseFeePerGas", "0x0"), 16)
        offered = int(tip.result, 16) if isinstance(tip.result, str) else 0
        priority = max(self.chain.priority_fee, offered)
        return Fees(2 * base + priority, priority)

    def _check_balance(self, needed: int) -> None:
        has = int(self.rpc.call("eth_getBalance", self.account.address, "latest"), 16)
        if has < needed + self.chain.reserve:
            kept = f" and keeps {self.chain.reserve} in reserve" if self.chain.reserve else ""
            raise ShoalError(
                "SH-CHAIN-08",
                f"{self.account.address} has {has} wei on {self.chain.name}, needs {needed}{kept}",
                "send it some of the chain's coin; what is to be settled is kept",
            )

    def nonce(self, block: str = "latest") -> int:
        """How many transactions of the account the chain has."""
        return int(self.rpc.call("eth_getTransactionCount", self.account.address, block), 16)

    def _signed(self, call: Call, nonce: int, gas: int, fees: Fees) -> Outgoing:
        raw = self._sign(call.to, call.data, call.value, nonce, gas, fees)
        return Outgoing(
            key=call.key,
            nonce=nonce,
            to=call.to,
            data=call.data,
            value=call.value,
            gas=gas,
            max_fee=fees.max_fee,
            priority_fee=fees.priority_fee,
            raws=(raw,),
            hashes=(transaction_hash(raw),),
        )

    def _sign(self, to: str, data: bytes, value: int, nonce: int, gas: int, fees: Fees) -> bytes:
        return Transaction(
            chain_id=self.chain.chain_id,
            nonce=nonce,
            to=to,
            data=data,
            value=value,
            gas=gas,
            max_fee=fees.max_fee,
            priority_fee=fees.priority_fee,
        ).signed(self.account)

    # --- following ---------------------------------------------------------------------------------------

    def push(self, now_s: float) -> list[Outgoing]:
        """Look after everything that is under way: what changed its state. Raises SH-CHAIN-04."""
        items = self._outbox.under_way(self.account.address)
        if not items:
            return []
        block, count = self.rpc.batch(
            [("eth_blockNumber", []), ("eth_getTransactionCount", [self.account.address, "latest"])]
        )
        if block.refused or count.refused:
            raise block.refused or count.refused or AssertionError
        where = Where(int(block.result, 16), int(count.result, 16))
        receipts = self._receipts([item for item in items if self._wants_receipt(item, where)])
        changed = [new for item in items if (new := self._judged(item, receipts, where)) is not None]
        if changed:
            self._outbox.put(self.account.address, changed)
        self._forget([item for item in changed if item.state == PENDING])
        settled = {item.nonce: item for item in changed}
        waiting = [now for item in items if (now := settled.get(item.nonce, item)).state == PENDING]
        self._broadcast(self._raised(waiting, now_s), now_s)
        return changed

    def reopen(self, items: Sequence[Outgoing]) -> None:
        """These are not on the chain any more, whatever was thought: send the same bytes again."""
        again = [msgspec.structs.replace(item, state=PENDING, block=0) for item in items]
        self._outbox.put(self.account.address, again)
        self._forget(again)

    def _forget(self, items: Sequence[Outgoing]) -> None:
        """These wait from now on, and were never broadcast."""
        for item in items:
            self._first_sent.pop(item.nonce, None)
            for hashed in item.hashes:
                self._sent_at.pop(hashed, None)

    def _receipts(self, items: Sequence[Outgoing]) -> dict[str, Any]:
        hashes = [hashed for item in items for hashed in item.hashes]
        answers = self.rpc.batch([("eth_getTransactionReceipt", [hashed]) for hashed in hashes])
        return {h: answer.result for h, answer in zip(hashes, answers, strict=True) if answer.result}

    def _wants_receipt(self, item: Outgoing, where: Where) -> bool:
        """What the chain may have, unless it was mined and only needs to get deeper."""
        deep = where.head - item.block + 1 >= self.chain.confirmations
        return item.nonce < where.count and (item.state == PENDING or deep)

    def _judged(self, item: Outgoing, receipts: dict[str, Any], where: Where) -> Outgoing | None:
        """The item in its new state, or None if that has not changed."""
        found = next((receipts[hashed] for hashed in item.hashes if hashed in receipts), None)
        if found is None:
            gone = item.nonce >= where.count or self._wants_receipt(item, where)
            if item.state == MINED and gone:  # A reorganisation took it back.
                return msgspec.structs.replace(item, state=PENDING, block=0)
            return None
        block = int(found["blockNumber"], 16)
        deep = where.head - block + 1 >= self.chain.confirmations
        state = (FINAL if found["status"] == "0x1" else FAILED) if deep else MINED
        if (state, block) == (item.state, item.block):
            return None
        return msgspec.structs.replace(
            item,
            state=state,
            block=block,
            gas_used=int(found["gasUsed"], 16),
            mined_hash=found["transactionHash"],
        )

    def _raised(self, waiting: list[Outgoing], now_s: float) -> list[Outgoing]:
        """Sign anew, for more, what has waited for long and holds up the rest."""
        patience = BUMP_BLOCKS * self.chain.block_s
        late = {
            item.nonce
            for item in waiting[:FIRST]  # the others wait for these
            if now_s - self._first_sent.setdefault(item.nonce, now_s) >= patience
            and len(item.raws) <= MOST_BUMPS
        }
        self._first_sent.update(dict.fromkeys(late, now_s))
        least = self._fees() if late else Fees(0, 0)
        done = [self._bumped(item, least) if item.nonce in late else item for item in waiting]
        raised = [new for old, new in zip(waiting, done, strict=True) if new is not old]
        if raised:
            self._outbox.put(self.account.address, raised)
            self._reached("outbox.raised")
        return done

    def _bumped(self, item: Outgoing, least: Fees) -> Outgoing:
        """For so much more that nodes replace the old version, and for what the chain asks now."""
        more = Fees(
            max(_more(item.max_fee), least.max_fee), max(_more(item.priority_fee), least.priority_fee)
        )
        raw = self._sign(item.to, item.data, item.value, item.nonce, item.gas, more)
        return msgspec.structs.replace(
            item,
            max_fee=more.max_fee,
            priority_fee=more.priority_fee,
            raws=(*item.raws, raw),
            hashes=(*item.hashes, transaction_hash(raw)),
        )

    def _broadcast(self, items: Sequence[Outgoing], now_s: float) -> None:
        due = [item for place, item in enumerate(items) if self._is_due(item, place, now_s)]
        answers = self.rpc.batch([("eth_sendRawTransaction", ["0x" + item.raws[-1].hex()]) for item in due])
        self._reached("outbox.sent")
        lost = []
        for item, answer in zip(due, answers, strict=True):
            self._sent_at[item.hashes[-1]] = now_s
            refused = answer.refused
            if refused is None:
                continue
            words = refused.message.lower()
            if "nonce too low" in words and self._is_lost(item):
                lost.append(msgspec.structs.replace(item, state=LOST))
            elif not any(known in words for known in (*_KNOWN, *_CHEAP)):
                raise ShoalError("SH-CHAIN-10", f"{item.key}: {refused.message}", "see docs/chain.md")
        if lost:
            self._outbox.put(self.account.address, lost)

    def _is_due(self, item: Outgoing, place: int, now_s: float) -> bool:
        """Everything once, and the first few again and again."""
        sent = self._sent_at.get(item.hashes[-1])
        again = place < FIRST and sent is not None and now_s - sent >= RESEND_BLOCKS * self.chain.block_s
        return sent is None or again

    def _is_lost(self, item: Outgoing) -> bool:
        """Somebody else used the nonce with this key's account, and deeply enough."""
        head = int(self.rpc.call("eth_blockNumber"), 16)
        deep = hex(max(0, head - self.chain.confirmations + 1))
        return self.nonce(deep) > item.nonce and not self._receipts([item])


def _more(fee: int) -> int:
    return fee + fee * BUMP_PERCENT // 100 + 1


def _refused(call: Call, refused: Refused) -> ShoalError:
    why = call.interface.refusal(refused.data) if refused.data else refused.message
    if "insufficient funds" in why.lower():
        return ShoalError("SH-CHAIN-08", f"{call.key}: {why}", "send the account some of the chain's coin")
    return ShoalError("SH-CHAIN-10", f"{call.key}: {why}", "see docs/chain.md for what the contract refuses")
