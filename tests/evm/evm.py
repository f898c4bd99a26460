"""A real EVM for tests: one anvil for a session, put back to its beginning after every test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.chain.contracts import Interface, read_interface, shipped
from shoal.chain.rpc import Refused, Rpc

ROOT = Path(__file__).parents[2]
NOBODY = "0x" + "0" * 40
DAY = 86_400
COIN = 10**18
GAS = 25_000_000


OTHER_BUILD = os.environ.get("SHOAL_CONTRACTS")
"""A folder with another build of the contracts, see `coverage.py`."""


def for_tests(name: str) -> Interface:
    folder = Path(OTHER_BUILD) if OTHER_BUILD else ROOT / "contracts" / "test" / "artifacts"
    return read_interface(json.loads((folder / f"{name}.json").read_text("utf-8")))


class Reverted(Exception):
    """A contract refused; the text is its reason."""


class Evm:
    """Sends from unlocked accounts, each transaction in a block of its own."""

    def __init__(self, url: str) -> None:
        self.rpc = Rpc([url])
        self.accounts: list[str] = self.rpc.call("eth_accounts")
        self.gas: dict[str, list[int]] = {}
        self.watch: Callable[[Interface, str | dict[str, Any]], None] = lambda interface, what: None
        """Told of every transaction and call, for coverage."""

    def deploy(self, interface: Interface, *values: Any, by: str | None = None) -> Deployed:
        data = "0x" + interface.deployment(*values).hex()
        receipt = self._send({"from": by or self.accounts[0], "data": data}, interface)
        return Deployed(self, interface, receipt["contractAddress"])

    def _send(self, transaction: dict[str, Any], interface: Interface) -> dict[str, Any]:
        receipt: dict[str, Any] = self.rpc.call("eth_sendTransactionSync", {**transaction, "gas": hex(GAS)})
        sent = receipt["transactionHash"]
        self.watch(interface, sent)
        if receipt["status"] != "0x1":
            trace = self.rpc.call("debug_traceTransaction", sent, {"tracer": "callTracer"})
            raise Reverted(interface.refusal(bytes.fromhex(trace.get("output", "0x")[2:])))
        return receipt

    def balance(self, address: str) -> int:
        return int(self.rpc.call("eth_getBalance", address, "latest"), 16)

    def now(self) -> int:
        return int(self.rpc.call("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def wait(self, seconds: int) -> None:
        """Move the chain's clock."""
        self.rpc.batch([("evm_increaseTime", [seconds]), ("evm_mine", [])])

    def snapshot(self) -> str:
        return str(self.rpc.call("evm_snapshot"))

    def back_to(self, snapshot: str) -> None:
        assert self.rpc.call("evm_revert", snapshot)


class Deployed:
    """A contract: `send` changes it, `ask` does not."""

    def __init__(self, evm: Evm, interface: Interface, address: str) -> None:
        self.evm, self.interface, self.address = evm, interface, address

    def send(self, by: str, function: str, *values: Any, value: int = 0) -> list[tuple[str, dict[str, Any]]]:
        """The events. Raises `Reverted`."""
        return self.events(self.receipt(by, function, *values, value=value))

    def receipt(self, by: str, function: str, *values: Any, value: int = 0) -> dict[str, Any]:
        data = "0x" + self.interface[function].call(*values).hex()
        transaction = {"from": by, "to": self.address, "data": data, "value": hex(value)}
        receipt = self.evm._send(transaction, self.interface)
        self.evm.gas.setdefault(function, []).append(int(receipt["gasUsed"], 16))
        return receipt

    def events(self, receipt: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        own = [log for log in receipt["logs"] if log["address"].lower() == self.address.lower()]
        found = [(self.interface.events[log["topics"][0]], log) for log in own]
        return [(event.name, event.read(log)) for event, log in found]

    def ask(self, function: str, *values: Any, by: str | None = None) -> Any:
        made = self.interface[function]
        request = {"to": self.address, "data": "0x" + made.call(*values).hex()}
        if by is not None:
            request["from"] = by
        self.evm.watch(self.interface, request)
        try:
            answer = self.evm.rpc.call("eth_call", request, "latest")
        except Refused as refused:
            raise Reverted(self.interface.refusal(refused.data)) from None
        return made.result(bytes.fromhex(answer[2:]))


REGISTRY, REWARDS = (
    for_tests(name) if OTHER_BUILD else shipped(name) for name in ("NodeRegistry", "TrainingRewards")
)
