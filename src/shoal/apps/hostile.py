"""Nodes that lie on purpose: `shoal join --adversary NAME --unsafe-adversary`, and the same in simulation.

In flows a name; out flows what takes part instead of an honest node. Invariant: a hostile node signs with its own keys
only and speaks through the honest node's own code but for its lie, so that everything it says reaches the code that
must see through it. Attacks on updates are those of `shoal.adversary`, or of a class of anybody's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from shoal.adversary import ATTACKS, Adversary, Attacker, Poisoner, Seen, find_attack, lie_of, taught
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Resources
from shoal.base.ids import NodeId
from shoal.codec.base import decode_whole
from shoal.data.assignment import Indices
from shoal.data.dataset import Batch, Dataset, Part, open_dataset
from shoal.node import events as ev
from shoal.node.learner import Learner
from shoal.node.service import NodeService
from shoal.node.session import open_session
from shoal.replica.serving import ResourcesByRun
from shoal.replica.update import open_update
from shoal.runlog.entries import Claim
from shoal.runlog.work import Planned
from shoal.wire.identity import Identity
from shoal.wire.messages import Offer
from shoal.wire.signed import sign
from shoal.worlds.simulated.liars import LIARS, Claimant, Liar

SYBILS, SYBIL_EVERY_S = 64, 0.25


# --- about updates -----------------------------------------------------------------------------------------


class Forger(Liar):
    """Sends what an attack makes of its update. Of others it knows the updates that were sealed last."""

    attack: Callable[[], Attacker]

    def __init__(self, *work: Any) -> None:
        super().__init__(*work)
        self._attacker = type(self).attack()
        self._sent: torch.Tensor | None = None

    async def _make_claim(self, planned: Planned, learner: Learner) -> ev.Outgoing:
        if isinstance(self._attacker, Adversary) and self.state is not None:
            base, trainer = self.state.params, learner.trainer
            honest = base - trainer.params().detach().cpu()
            lie = lie_of(self._attacker, honest, self._seen(planned, honest))
            trainer.load(base - lie)
        outgoing = await super()._make_claim(planned, learner)
        self._sent = self._values(outgoing.claim, planned.place, planned.assignment.codec)
        return outgoing

    def _seen(self, planned: Planned, honest: torch.Tensor) -> Seen:
        path = self.machine.view.path
        others = [
            values
            for update in (path[-1].updates if path else ())
            if update.claim.node != self.identity.node
            and (values := self._values(update.claim, update.place, update.codec)) is not None
        ]
        return Seen(
            round=planned.round,
            nodes=len(self.machine.view.members),
            attackers=1,
            member=0,
            others=others or [honest],
            allies=[honest],
            sent=self._sent,
            seed=0,
        )

    def _values(self, claim: Claim, place: int, codec: int) -> torch.Tensor | None:
        """An update that lies on this disk, as a flat vector; None if it does not, or is of parts of the model."""
        genesis, rules = self.machine.view.genesis, self._rules
        if genesis is None or rules is None:
            return None
        fragments = tuple(index for index, _ in claim.base)
        try:
            blob = self.blobs.get(claim.blob)
        except (FileNotFoundError, ShoalError):
            return None
        opened = open_update(blob, genesis.layout, fragments, rules.codec_at(place, codec))
        if opened is None or len(opened) != len(genesis.layout.fragments):
            return None
        parts = [decode_whole(opened[i], genesis.layout.fragments[i].numel) for i in sorted(opened)]
        return torch.cat(parts)


class PoisonedData(Dataset):
    """Samples as a poisoner makes them, for training alone."""

    def __init__(self, poisoner: Poisoner, *rest: Any) -> None:
        super().__init__(*rest)
        self._poisoner = poisoner

    def batch(self, indices: Indices, part: Part = "train") -> Batch:
        honest, manifest = super().batch(indices, part), self.manifest
        classes = manifest.classes if manifest.kind == "arrays" else manifest.vocab_size
        return taught(self._poisoner, honest, classes) if part == "train" else honest


def data_for(name: str) -> Callable[..., Dataset]:
    """What opens the run's data for this adversary. Raises SH-ATTACK-01."""
    made = None if name in PROTOCOL else find_attack(name)()
    return partial(PoisonedData, made) if isinstance(made, Poisoner) else open_dataset


# --- about the protocol ------------------------------------------------------------------------------------


class Equivocator(Liar):
    """Signs two claims of one sequence, and offers both."""

    async def _carry_out(self, effect: ev.Effect) -> None:
        await super()._carry_out(effect)
        if isinstance(effect, ev.SendUp) and isinstance(effect.message, Offer):
            claim = msgspec.msgpack.decode(effect.message.claim.payload, type=Claim)
            other = sign(self.identity, msgspec.structs.replace(claim, loss=claim.loss / 2 + 1))
            await self._link.send(Offer(claim=other, receipts=effect.message.receipts))


class ForgedBase(Claimant):
    """Says that it began from another version than its plan's."""

    def untrue(self, claim: Claim) -> dict[str, Any]:
        return {"base": tuple((fragment, version + 1) for fragment, version in claim.base)}


class StaleReplayer(Liar):
    """Offers its first claim again with every later one."""

    _first: Offer | None = None

    async def _carry_out(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.SendUp) and isinstance(effect.message, Offer):
            self._first = self._first or effect.message
            await self._link.send(self._first)
        await super()._carry_out(effect)


class _Bent:
    """Resources of which the first byte of every blob's range is wrong."""

    def __init__(self, inner: Resources) -> None:
        self._inner = inner

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        data = self._inner.get(path, start, stop)
        is_content = "/blobs/" in path and not path.endswith("/chunks")
        return bytes([data[0] ^ 1]) + data[1:] if data and is_content else data

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        return self._inner.put(path, body, sender)


class BadChunks(Liar):
    """Serves blobs with wrong bytes in them."""

    async def _wake_up(self) -> None:
        await super()._wake_up()
        self._blob_address = await self.host.offer(
            _Bent(ResourcesByRun({self.invitation.run: self._resources}))
        )


class WithheldBlob(Liar):
    """Has its update held by the fewest, claims it, and serves nothing from then on."""

    async def _wake_up(self) -> None:
        await super()._wake_up()
        self._blob_address = await self.host.offer(_Silent())


class _Silent:
    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        return None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        return msgspec.msgpack.encode(((), None))


class WithheldState(Liar):
    """Forges, and does not show the private state that its claim commits to."""

    async def _make_claim(self, planned: Planned, learner: Learner) -> ev.Outgoing:
        outgoing = await super()._make_claim(planned, learner)
        nowhere = f"{self.host.random.getrandbits(256):064x}"
        claim = msgspec.structs.replace(outgoing.claim, local_before=nowhere)
        return ev.Outgoing(claim=claim, signed=sign(self.identity, claim))


class Sybil(Liar):
    """One machine that joins as many, under fresh keys."""

    async def _tick(self) -> None:
        self._spawn(self._multiply(), "multiply")
        await super()._tick()

    async def _multiply(self) -> None:
        self.joined: list[Channel] = []
        self.refused: list[str] = []
        for number in range(SYBILS):
            await self.host.clock.sleep(SYBIL_EVERY_S)
            other = Identity(self.host.random.randbytes(32))
            invitation = replace(self.invitation, name=f"sybil {number}")
            with contextlib.suppress(ChannelClosed):
                try:
                    channel, _ = await open_session(self.host, other, invitation, blob_address="", length=0)
                    self.joined.append(channel)
                except ShoalError as refusal:
                    self.refused.append(refusal.code)


PROTOCOL: dict[str, Callable[..., NodeService]] = {
    **{f"liar-{name}": liar for name, liar in LIARS.items()},
    "bad-chunks": BadChunks,
    "equivocation": Equivocator,
    "forged-base": ForgedBase,
    "replayed-claim": StaleReplayer,
    "sybil": Sybil,
    "withheld-blob": WithheldBlob,
    "withheld-state": WithheldState,
}


def hostile(name: str) -> Callable[..., NodeService]:
    """What takes part as this adversary: a protocol's, an attack on updates, or `module:Class`. Raises SH-ATTACK-01."""
    if name in PROTOCOL:
        return PROTOCOL[name]
    if ":" not in name and name not in ATTACKS:
        raise ShoalError(
            "SH-ATTACK-01",
            f"found {name!r}",
            f"allowed: {', '.join(sorted({*ATTACKS, *PROTOCOL}))}, or module:Class; see docs/strangers.md",
        )
    return type(f"Forger of {name}", (Forger,), {"attack": staticmethod(find_attack(name))})
