"""A job on the chain, as the settlement reads and changes it.

In flow an RPC and an address; out flow a job's fields, and why it takes no more. Invariant: what is read here decides
what is sent, and the contract decides again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.base.errors import ShoalError
from shoal.chain.contracts import Interface, shipped
from shoal.chain.rpc import Refused, Rpc


class RewardsView:
    """Reads TrainingRewards."""

    def __init__(self, rpc: Rpc, address: str) -> None:
        self.rpc, self.address = rpc, address
        self.interface: Interface = shipped("TrainingRewards")

    def ask(self, function: str, *values: Any) -> Any:
        return self.interface[function].result(self._call(function, *values))

    def _call(self, function: str, *values: Any) -> bytes:
        made = self.interface[function]
        request = {"to": self.address, "data": "0x" + made.call(*values).hex()}
        try:
            return bytes.fromhex(self.rpc.call("eth_call", request, "latest")[2:])
        except Refused as refused:
            why = self.interface.refusal(refused.data) if refused.data else refused.message
            raise ShoalError("SH-CHAIN-10", f"{function}: {why}", "see docs/chain.md") from None

    def job(self, job: int) -> dict[str, Any]:
        return self.interface["getJob"].fields(self._call("getJob", job))

    def root(self, job: int, epoch: int) -> bytes:
        return bytes(self.interface["getEpochRoot"].fields(self._call("getEpochRoot", job, epoch))["root"])

    def disputed(self, job: int) -> int:
        """The epoch that is disputed, 0 for none."""
        return int(self.interface["getDispute"].fields(self._call("getDispute", job))["epoch"])

    def room(self, job: int) -> Room:
        fields = self.job(job)
        disputed = self.disputed(job) if fields["window"] else 0
        return Room(
            job=job,
            epoch=fields["epoch"],
            budget=fields["budget"],
            released=int(self.ask("released", job)),
            swept=fields["swept"],
            disputed=disputed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a job takes now."""

    job: int
    epoch: int
    budget: int
    released: int
    swept: bool
    disputed: int

    def refuses(self, total: int) -> ShoalError | None:
        """Why the job would not take a root with this total, or None if it would."""
        if self.swept:
            return _no_more(f"job {self.job} is closed and swept", "create another")
        if total > self.budget:
            return _no_more(
                f"job {self.job} has a budget of {self.budget}, {total - self.budget} less than was earned",
                "fund it with `shoal chain fund`; training goes on",
            )
        if self.disputed:
            return _no_more(
                f"epoch {self.disputed} of job {self.job} is disputed", "wait until it is decided"
            )
        if total > self.released:
            return _no_more(
                f"job {self.job} may commit {self.released} by now, {total - self.released} less than was earned",
                "it goes on when the next epoch's length of time has begun",
            )
        return None


def _no_more(cause: str, next_step: str) -> ShoalError:
    return ShoalError("SH-CHAIN-09", cause, next_step)
