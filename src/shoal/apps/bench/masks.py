"""`shoal bench masks`: a round of secure aggregation, with members that drop out, in one process.

In flow sizes; out flow seconds, bytes, and whether the sum was exact. Invariant: members and hub do all that they do
over a network, one after another on one core; each is timed by itself, and what is only for checking is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch

from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.secagg.collector import Collector, Stage, Total
from shoal.secagg.fixed import Words
from shoal.secagg.member import Dealing, MaskedNumbers, Member
from shoal.secagg.messages import Agreed, Dealt, Keys, Refusal, Survivors
from shoal.secagg.terms import Terms, unsound, usual_threshold
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed

LIMIT = 8.0
PER = 10_000_000
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class Clocks:
    """Seconds and bytes of each member, and of the hub."""

    seconds: dict[str, float] = field(default_factory=dict)
    growing: dict[str, float] = field(default_factory=dict)
    """Of these, the seconds that grow with the number of parameters."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of a core, which other programs on the machine change less than the time that passes."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)

    def timed(self, who: str, job: Callable[[], T], *, grows: bool = False) -> T:
        began, worked = time.perf_counter(), time.process_time()
        done = job()
        took = time.perf_counter() - began
        self.cpu[who] = self.cpu.get(who, 0.0) + time.process_time() - worked
        for clocks in (self.seconds, self.growing) if grows else (self.seconds,):
            clocks[who] = clocks.get(who, 0.0) + took
        return done

    def for_size(self, who: str, factor: float) -> float:
        """The seconds it would take with so many times as many parameters."""
        return self.seconds[who] + (factor - 1) * self.growing[who]

    def says(self, who: str, *parts: object) -> None:
        self.sent_bytes[who] = self.sent_bytes.get(who, 0) + _size(*parts)

    def hears(self, who: str, *parts: object) -> None:
        self.received_bytes[who] = self.received_bytes.get(who, 0) + _size(*parts)


def measure(
    nodes: int, dropouts: int, parameters: int, threshold: int, seed: int, say: Say
) -> dict[str, Any]:
    """One round. Raises SH-BENCH-01 where so many dropouts cannot be recovered from, or the terms are unsound."""
    torch.set_num_threads(1)
    identities = sorted((Identity.generate() for _ in range(nodes)), key=lambda one: one.node)
    terms = Terms(
        group="0" * 32,
        hub="0" * 40,
        round=1,
        roster=tuple(identity.public for identity in identities),
        threshold=threshold or min(usual_threshold(nodes), max(nodes - dropouts, nodes // 2 + 1)),
        numel=parameters,
        limit=LIMIT,
    )
    _check(terms, nodes, dropouts)
    round_here = _Round(terms, identities, dropouts, seed, say)
    return round_here.play()


def _check(terms: Terms, nodes: int, dropouts: int) -> None:
    why = unsound(terms)
    if not why and nodes - dropouts < terms.threshold:
        why = f"{nodes - dropouts} of {nodes} nodes are left, and it takes {terms.threshold}"
    if why:
        raise ShoalError("SH-BENCH-01", why, "give other --nodes, --dropouts or --threshold")


class _Round:
    def __init__(self, terms: Terms, identities: list[Identity], dropouts: int, seed: int, say: Say) -> None:
        self._terms, self._seed, self._say = terms, seed, say
        self._clocks = Clocks()
        self._hub = self._clocks.timed("hub", lambda: Collector(terms))
        self._members = {
            one.node: self._clocks.timed(one.node, partial(Member, one, terms)) for one in identities
        }
        every = len(identities) / max(1, dropouts)
        self._gone = {identities[int(number * every)].node for number in range(dropouts)}
        """They deal, and are not heard of again: the dearest way to drop out."""
        self._plain: Words = np.zeros(terms.numel, dtype=np.uint32)
        self._whole = np.zeros(terms.numel, dtype=np.int64)

    def play(self) -> dict[str, Any]:
        hub = self._hub
        while hub.stage < Stage.SUM:
            answering = [
                node for node in hub.waiting_for if hub.stage < Stage.NUMBERS or node not in self._gone
            ]
            self._say(f"{hub.stage.name.lower()} of {len(answering)} nodes")
            for node in tracked(answering, "nodes"):
                _sound(self._answer(node))
            _sound(self._clocks.timed("hub", hub.close))
        self._say("taking the masks off the sum")
        total = self._clocks.timed("hub", hub.finish, grows=True)
        if isinstance(total, Refusal):
            raise AssertionError(total.why)
        return self._result(total)

    def _answer(self, node: NodeId) -> Refusal | None:
        hub, member, clocks = self._hub, self._members[node], self._clocks
        told = clocks.timed("hub", lambda: hub.told(node))
        clocks.hears(node, told)
        match told:
            case Keys():
                dealing = clocks.timed(node, lambda: member.deal(told.hellos))
                assert isinstance(dealing, Dealing)
                clocks.says(node, dealing.signed, dealing.envelopes)
                return clocks.timed("hub", lambda: hub.take_deal(node, dealing.signed, dealing.envelopes))
            case Dealt():
                _sound(clocks.timed(node, lambda: member.receive(told.deals, told.envelopes)))
                return self._send_numbers(node, member)
            case Survivors():
                agreement = _signed(clocks.timed(node, lambda: member.agree(told.nodes)))
                clocks.says(node, agreement)
                return clocks.timed("hub", lambda: hub.take_agreement(node, agreement))
            case Agreed():
                reveal = _signed(clocks.timed(node, lambda: member.reveal(told.agreements)))
                clocks.says(node, reveal)
                return clocks.timed("hub", lambda: hub.take_reveal(node, reveal))
        hello = _signed(clocks.timed(node, member.hello))
        clocks.says(node, hello)
        return clocks.timed("hub", lambda: hub.take_hello(node, hello))

    def _send_numbers(self, node: NodeId, member: Member) -> Refusal | None:
        hub, clocks = self._hub, self._clocks
        random = torch.Generator().manual_seed(self._seed * 1000 + self._terms.nodes.index(node))
        update = torch.empty(self._terms.numel).normal_(0, 0.01, generator=random)
        words = clocks.timed(node, lambda: self._terms.fixed.encode(update), grows=True)
        self._plain += words
        self._whole += words.view(np.int32)
        masked = clocks.timed(node, lambda: member.mask(words), grows=True)
        assert isinstance(masked, MaskedNumbers)
        clocks.says(node, masked.signed, masked.numbers)
        take = partial(hub.take_numbers, node, masked.signed, masked.numbers)
        return clocks.timed("hub", take, grows=True)

    def _result(self, total: Total) -> dict[str, Any]:
        survivors, clocks = total.survivors, self._clocks
        whole = bool(np.array_equal(total.words.view(np.int32), self._whole))
        exact = whole and bool(np.array_equal(total.words, self._plain))
        by_node = [clocks.seconds[node] for node in survivors]
        factor = PER / self._terms.numel
        at_10m = max(clocks.for_size(node, factor) for node in survivors) + clocks.for_size("hub", factor)
        return {
            "exact": exact,
            "nodes": len(self._terms.roster),
            "dropouts": len(self._gone),
            "survivors": len(survivors),
            "threshold": self._terms.threshold,
            "colluders": self._terms.colluders,
            "parameters": self._terms.numel,
            "seconds_per_node": round(sum(by_node) / len(by_node), 4),
            "seconds_slowest_node": round(max(by_node), 4),
            "seconds_hub": round(clocks.seconds["hub"], 4),
            "seconds_per_10m_parameters": round(at_10m, 4),
            "cpu_seconds_per_node": round(sum(clocks.cpu[node] for node in survivors) / len(survivors), 4),
            "cpu_seconds_hub": round(clocks.cpu["hub"], 4),
            "wire_bytes_per_node": max(clocks.sent_bytes[node] for node in survivors),
            "received_bytes_per_node": max(clocks.received_bytes[node] for node in survivors),
            "bytes_per_parameter": round(
                max(clocks.sent_bytes[node] for node in survivors) / self._terms.numel, 4
            ),
            "unit": self._terms.fixed.unit,
        }


def _size(*parts: object) -> int:
    return sum(len(part) if isinstance(part, bytes) else len(msgspec.msgpack.encode(part)) for part in parts)


def _signed(answer: Signed | Refusal) -> Signed:
    _sound(answer if isinstance(answer, Refusal) else None)
    assert isinstance(answer, Signed)
    return answer


def _sound(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise AssertionError(refusal.why)
