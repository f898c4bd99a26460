"""Members that lie, each in one way: hostile nodes for the simulated world.

In flow the same entries and work as with an honest node; out flow claims, attestations, receipts and messages
that are not true. Invariant: a liar signs with its own key only and speaks the protocol, so that everything it
says reaches the code that must see through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.host import Peer, Refused, Resources
from shoal.base.ids import BlobId, NodeId
from shoal.node import events as ev
from shoal.node.folding import Item
from shoal.node.service import NodeService
from shoal.replica.serving import ResourcesByRun
from shoal.replica.update import encode_update
from shoal.runlog.entries import Claim, DataRange, Folding
from shoal.runlog.view import Step
from shoal.wire.messages import Goodbye, Message, NeedEntries, Stuck
from shoal.wire.signed import Signed

NOWHERE = BlobId("0" * 64)


class Liar(NodeService):
    """An honest node but for what its subclass makes of it."""

    def pick(self, *choices: Any) -> Any:
        return self.host.random.choice(choices)

    def _vouches(self, claim: Claim, peer: Peer, signed: Signed) -> bool:
        """Whatever receipt there is will do: that it does not fit is for others to find."""
        return True


# --- about its work ----------------------------------------------------------------------------------------


class Claimant(Liar):
    """Says something untrue about its update."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        raise NotImplementedError

    def _claim(self, *work: Any) -> Claim:
        claim = super()._claim(*work)
        return msgspec.structs.replace(claim, **self.untrue(claim))


class SizeLiar(Claimant):
    """The blob is said to be smaller or larger than it is."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        size = claim.size_bytes
        return {"size_bytes": self.pick(1, size - 1, size + 1, 2 * size, 1 << 20, 10**12)}


class Braggart(Claimant):
    """More samples, tokens or steps than there were, or none that are its own."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        last = claim.data[-1]
        longer = DataRange(last.start, last.count + 10**6)
        others = DataRange(max(0, last.start - last.count), last.count)
        return self.pick(  # type: ignore[no-any-return]
            {"tokens": 10**15},
            {"steps": 10**12},
            {"loss": math.nan},
            {"data": (longer,), "samples": longer.count},
            {"data": (others, last), "samples": others.count + last.count},
            {"data": (last, last), "samples": 2 * last.count},
            {"data": (DataRange(0, 10**9), last), "samples": 10**9 + last.count},
            {"data": (DataRange(-5, 5), last), "samples": 5 + last.count},
        )


class Copycat(Claimant):
    """Claims a blob that it did not make."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        genesis, path = self.machine.view.genesis, self.machine.view.path
        assert genesis is not None
        known = [(genesis.snapshot, genesis.snapshot_bytes)]
        known += [(u.claim.blob, u.claim.size_bytes) for step in path[-1:] for u in step.updates]
        blob, size_bytes = self.pick(*known)
        return {"blob": blob, "size_bytes": size_bytes}


class Garbler(Claimant):
    """Its updates are no updates."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        good = self.blobs.get(claim.blob)
        infinite = encode_update([(part, b"\xff" * (claim.size_bytes // 2)) for part, _ in claim.base])
        junk = self.pick(
            b"junk", good[:-1], good + b"\0", good[: len(good) // 2], infinite, encode_update([])
        )
        return {"blob": self.blobs.put(junk), "size_bytes": len(junk)}


# --- about the state ---------------------------------------------------------------------------------------


class FalseWitness(Liar):
    """Attests a state that nobody has."""

    async def _attest(self, word: ev.SendAttestation) -> None:
        wrong = f"{self.host.random.getrandbits(256):064x}"
        await super()._attest(ev.SendAttestation(word.at, wrong, word.snapshot, word.validation))


class Poisoner(Liar):
    """Attests the right state, but its snapshot is rubbish, or is nowhere."""

    async def _attest(self, word: ev.SendAttestation) -> None:
        rubbish = self.blobs.put(b"rubbish" * self.pick(1, 2, 3))
        snapshot = self.pick(rubbish, NOWHERE, BlobId("not a blob's name"))
        await super()._attest(ev.SendAttestation(word.at, word.state, snapshot, self.pick(None, math.nan)))


class FalseFolder(Liar):
    """Its digests are of something else, or nowhere."""

    def _folding(self, step: Step, items: tuple[Item, ...]) -> Folding:
        wrong = []
        for number, blob, size_bytes in items:
            turned = bytes(byte ^ 1 for byte in self.blobs.get(blob))
            wrong.append((number, self.pick(self.blobs.put(turned), NOWHERE, blob), size_bytes))
        return super()._folding(step, tuple(wrong))


# --- about what it stores ----------------------------------------------------------------------------------


class Shut:
    """Resources of which nothing is given, and to which perhaps nothing can be given."""

    def __init__(self, inner: Resources, *, takes: bool) -> None:
        self._inner, self._takes = inner, takes

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        return None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if not self._takes:
            raise Refused("not here")
        return self._inner.put(path, body, sender)


class Withholder(Liar):
    """Gives receipts, and then serves nothing."""

    takes = True

    async def _wake_up(self) -> None:
        await super()._wake_up()
        served = ResourcesByRun({self.invitation.run: self._resources})
        await self.host.offer(Shut(served, takes=self.takes))


class Miser(Withholder):
    """Stores nothing for anybody."""

    takes = False


# --- in what it says ---------------------------------------------------------------------------------------


class Talker(Liar):
    """Says something, again and again, that it had better not."""

    def chatter(self) -> list[Message]:
        raise NotImplementedError

    async def _tick(self) -> None:
        self._spawn(self._talk(), "talk")
        await super()._tick()

    async def _talk(self) -> None:
        while True:
            await self.host.clock.sleep(self.pick(0.3, 0.6, 1.0))
            for message in self.chatter():
                await self._link.send(message)


class Nagger(Talker):
    """Asks for entries that cannot be."""

    def chatter(self) -> list[Message]:
        return [NeedEntries(start=start) for start in (-1, -(2**40), 2**62, 2**64 - 1)]


class Whiner(Talker):
    """Says that it cannot get blobs that everybody has, or that there never were."""

    def chatter(self) -> list[Message]:
        path = self.machine.view.path
        lies: list[tuple[int, BlobId, float]] = [(0, NOWHERE, 1e9), (-3, BlobId("../../etc"), math.nan)]
        for step in path[-2:]:
            lies += [(step.position, update.claim.blob, 1e9) for update in step.updates]
            lies.append((step.position, NOWHERE, math.inf))
        return [Stuck(at=at, blob=blob, seconds=seconds) for at, blob, seconds in lies]


class Slammer(Talker):
    """Says goodbye at length, and stays."""

    def chatter(self) -> list[Message]:
        return [Goodbye(reason="slam " * 200)] * 3


class Flapper(Talker):
    """Breaks its connection again and again, with a goodbye or without, and is back at once."""

    def chatter(self) -> list[Message]:
        return [Goodbye(reason="gone")] if self.pick(True, False) else []

    async def _talk(self) -> None:
        self._spawn(super()._talk(), "say goodbye")
        while True:
            await self.host.clock.sleep(0.3 * self.host.random.random())
            if self._link._channel is not None:
                await self._link._channel.close()


class Babbler(Talker):
    """Wants the whole log, all the time."""

    def chatter(self) -> list[Message]:
        return [NeedEntries(start=0)] * 20


LIARS: dict[str, Callable[..., NodeService]] = {
    "babbler": Babbler,
    "braggart": Braggart,
    "copycat": Copycat,
    "false-folder": FalseFolder,
    "false-witness": FalseWitness,
    "flapper": Flapper,
    "garbler": Garbler,
    "miser": Miser,
    "nagger": Nagger,
    "poisoner": Poisoner,
    "size": SizeLiar,
    "slammer": Slammer,
    "whiner": Whiner,
    "withholder": Withholder,
}
