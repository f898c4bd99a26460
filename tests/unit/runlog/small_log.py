"""A small, real log for tests: every entry is made, signed and checked as in a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.layout import make_layout
from shoal.data.manifest import Manifest, Shard
from shoal.runlog.chain import NO_HEAD, Link, make_link
from shoal.runlog.entries import (
    Accepted,
    Assignment,
    Attestation,
    Attestations,
    Body,
    Claim,
    DataRange,
    Genesis,
    Joined,
    Left,
    Plan,
    Receipt,
    Rejected,
    Rewind,
    Seal,
    Snapshot,
    Stopped,
)
from shoal.runlog.view import RunView, head_of
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.wire.identity import Identity
from shoal.wire.messages import Offer
from shoal.wire.signed import Signed, digest, sign

RUN, OTHER_RUN = RunId("1" * 32), RunId("2" * 32)
COORDINATOR = Identity(b"coordinator".ljust(32, b"."))
STRANGER = Identity(b"stranger".ljust(32, b"."))
NODES = tuple(
    sorted((Identity(f"node {i}".encode().ljust(32, b".")) for i in range(5)), key=lambda one: one.node)
)
"""Identities in the order of their ids, so that "the first" is the first in every sorted list too."""
STEPS, BATCH = 3, 2


def small_recipe(**changes: Any) -> Recipe:
    """A recipe of somebody's own program; `changes` are whole sections."""
    values: dict[str, Any] = {
        "model": {"kind": "own"},
        "data": {"source": "own", "items": 4096},
        "inner": {"kind": "own", "batch_size": BATCH},
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": STEPS},
            "codec": {"kind": "none"},
            "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        },
        "budget": {"rounds": 100},
        "membership": {"lease_s": 6.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
        "storage": {"snapshot_every": 2},
    }
    return parse_recipe(json.dumps({**values, **changes}), environment={})


def blob_id(*of: object) -> BlobId:
    return BlobId(digest(repr(of).encode()))


def state_id(name: str) -> str:
    """A state's hash by a short name."""
    return name if len(name) == 64 else digest(name.encode())


def genesis_of(recipe: Recipe, coordinator: Identity = COORDINATOR) -> Genesis:
    return Genesis(
        coordinator=coordinator.public,
        recipe=recipe.model_dump_json(),
        manifest=Manifest(
            kind="tokens", dtype="uint8", train=(Shard(blob_id("data"), 4096),), validation=(), context=1
        ),
        layout=make_layout([("a", (8,)), ("b", (8,))], 2),
        state=digest(b"first state"),
        snapshot=blob_id("first state"),
        snapshot_bytes=64,
    )


def founded(recipe: Recipe | None = None) -> RunView:
    """A view of a log that has its genesis entry only."""
    view = RunView()
    view.apply(make_link(COORDINATOR, RUN, NO_HEAD, 1, 1000, genesis_of(recipe or small_recipe())))
    return view


def make_claim(view: RunView, node: Identity, /, **changes: Any) -> Claim:
    """What an honest member would claim for its latest open work, with `changes`."""
    position = max(view.planned.get(node.node, {0: None}))
    work = view.planned.get(node.node, {}).get(position)
    start = work.data.start if work else 0
    member = view.members.get(node.node)
    fragments = view.plan.fragments if view.plan else ()
    base = tuple((fragment, view.versions[fragment]) for fragment in fragments)
    claim = Claim(
        run=view.run,
        node=node.node,
        sequence=member.last_sequence + 1 if member else 0,
        round=work.round if work else view.round,
        plan=position,
        head=view.head,
        base=work.base if work else base,
        steps=STEPS,
        samples=STEPS * BATCH,
        tokens=STEPS * BATCH,
        data=(DataRange(start, STEPS * BATCH),),
        local_before=blob_id("before"),
        local_after=blob_id("after"),
        blob=blob_id("update", node.node, view.round, tuple(view.versions)),
        size_bytes=100,
        loss=1.0,
    )
    return msgspec.structs.replace(claim, **changes)


def make_receipt(holder: Identity, blob: BlobId, /, **changes: Any) -> Signed:
    receipt = Receipt(run=RUN, holder=holder.node, blob=blob, size_bytes=100)
    return sign(holder, msgspec.structs.replace(receipt, **changes))


def make_offer(view: RunView, node: Identity, holder: Identity = COORDINATOR, /, **changes: Any) -> Offer:
    claim = make_claim(view, node, **changes)
    return Offer(claim=sign(node, claim), receipts=(make_receipt(holder, claim.blob),))


def make_attestation(view: RunView, node: Identity, at: int, state: str, /, **changes: Any) -> Signed:
    word = Attestation(run=view.run, node=node.node, at=head_of(view, at), state=state_id(state))
    return sign(node, msgspec.structs.replace(word, **changes))


def accepted(view: RunView, node: Identity, holder: Identity = COORDINATOR, /, **changes: Any) -> Accepted:
    offer = make_offer(view, node, holder, **changes)
    return Accepted(claim=offer.claim, weight=STEPS * BATCH, receipts=offer.receipts)


@dataclass
class Clerk:
    """Writes a log, as the coordinator would."""

    run: RunId = RUN
    identity: Identity = COORDINATOR
    view: RunView = field(default_factory=RunView)
    links: list[Link] = field(default_factory=list)
    term: int = 1

    def make(self, body: Body, **changes: Any) -> Link:
        """The next entry, signed but not taken."""
        link = make_link(self.identity, self.run, self.view.head, self.term, 1000 + self.view.length, body)
        if not changes:
            return link
        entry = msgspec.structs.replace(link.entry, **changes)
        signed = sign(self.identity, entry)
        return Link(entry, digest(signed.payload), msgspec.msgpack.encode(signed), signed)

    def append(self, body: Body) -> int:
        link = self.make(body)
        self.view.apply(link)
        self.links.append(link)
        return link.entry.position

    @property
    def entries(self) -> list[bytes]:
        return [link.encoded for link in self.links]

    def found(self, recipe: Recipe | None = None) -> int:
        return self.append(genesis_of(recipe or small_recipe(), self.identity))

    def join(self, *nodes: Identity) -> None:
        for node in nodes:
            self.append(Joined(node=node.node, public=node.public, name="n"))

    def plan_body(self, *nodes: Identity, **changes: Any) -> Plan:
        count = STEPS * BATCH
        members = tuple(
            Assignment(
                node=node.node,
                data=DataRange(self.view.next_counter + i * count, count),
                steps=STEPS,
                batch=BATCH,
            )
            for i, node in enumerate(nodes)
        )
        plan = Plan(
            round=self.view.round,
            step=0,
            members=members,
            deadline_ms=10_000,
            fragments=(0, 1),
            reason="all",
        )
        return msgspec.structs.replace(plan, **changes)

    def plan(self, *nodes: Identity) -> int:
        return self.append(self.plan_body(*nodes))

    def seal_body(self, *nodes: Identity, **changes: Any) -> Seal:
        seal = Seal(
            round=self.view.round,
            fragments=(0, 1),
            accepted=tuple(accepted(self.view, node) for node in nodes),
            rejected=(),
            reason="all",
        )
        return msgspec.structs.replace(seal, **changes)

    def seal(self, *nodes: Identity, rejected: tuple[Rejected, ...] = ()) -> int:
        return self.append(self.seal_body(*nodes, rejected=rejected))

    def attest(self, at: int, state: str, *nodes: Identity) -> int:
        items = tuple(make_attestation(self.view, node, at, state) for node in nodes)
        return self.append(Attestations(items=items))

    def snapshot(self, at: int, state: str, *holders: NodeId) -> int:
        blob = blob_id("state", at)
        return self.append(Snapshot(at=at, state=state, blob=blob, size_bytes=64, holders=holders))


def whole_story(run: RunId = RUN, identity: Identity = COORDINATOR) -> Clerk:
    """A short life of a run, with every kind of entry that this coordinator writes."""
    a, b, c = NODES[:3]
    clerk = Clerk(run=run, identity=identity)
    clerk.found()
    clerk.join(a, b)
    clerk.plan(a, b)
    if identity is not COORDINATOR or run != RUN:
        # Receipts above are the usual coordinator's, for the usual run: another story ends here.
        clerk.append(Stopped(reason="enough"))
        return clerk
    first = clerk.seal(a, b)
    clerk.attest(first, "s1", a, b)
    clerk.snapshot(first, "s1", a.node)
    clerk.join(c)
    clerk.plan(a, b, c)
    clerk.plan(a, c)
    second = clerk.seal(a, c, rejected=(Rejected(node=b.node, sequence=1, reason="late"),))
    clerk.attest(second, "s2", a, c)
    clerk.append(Left(node=b.node, reason="enough for today"))
    clerk.term += 1
    clerk.append(Rewind(to=first, reason="asked"))
    clerk.plan(a)
    clerk.seal(a)
    clerk.append(Stopped(reason="3 rounds done"))
    return clerk
