"""What a screener reads of earlier seals, and what nodes keep for it, whatever the log goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import torch
from runlog.small_log import COORDINATOR, NODES, RUN, Clerk, blob_id, genesis_of, small_recipe

from shoal.audit.docket import Docket
from shoal.base.ids import BlobId, RunId
from shoal.node.auditing import UPDATES_REMEMBERED, Auditor, Means
from shoal.node.learner import Learner
from shoal.node.link import ControlLink
from shoal.node.session import Invitation
from shoal.node.supply import Supply
from shoal.replica.blobs import BlobStore
from shoal.replica.state import initial_state
from shoal.replica.swarm import Swarm
from shoal.runlog.entries import Graft, Head, Screening, Stopped
from shoal.runlog.view import Step
from shoal.wire.identity import Identity
from shoal.wire.messages import Audited, Message
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork
from shoal.worlds.simulated.toy import ToyTrainer

RECIPE = small_recipe(audit={"rate": 0.05})
SEALS = 140
FULL = UPDATES_REMEMBERED // len(NODES)
"""So many seals of everybody are remembered; the log is longer."""


class Region(Clerk):
    """A region that has its parent's news now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.append(msgspec.structs.replace(genesis_of(RECIPE), parent=RunId("9" * 32)))
        self.join(*NODES)

    def round(self, *nodes: Identity) -> int:
        self.plan(*nodes)
        return self.seal(*nodes)

    def graft(self) -> None:
        position = self.view.length
        news = Graft(parent=Head(position, "c" * 64), blob=blob_id("graft", position), size_bytes=50)
        self.append(news)


class Shelf(BlobStore):
    """An empty store that remembers what it was asked for, and lets the world go on meanwhile."""

    def __init__(self, host: SimHost, meanwhile: Callable[[BlobId], None]) -> None:
        super().__init__(host.disk, host.reached)
        self.asked: set[BlobId] = set()
        self._meanwhile = meanwhile

    def get(self, blob: BlobId) -> bytes:
        self.asked.add(blob)
        self._meanwhile(blob)
        return super().get(blob)


class Screener:
    """The member that the log draws to look at its last seal. Nobody gives it any blobs."""

    def __init__(self, clerk: Clerk, meanwhile: Callable[[BlobId], None] = lambda blob: None) -> None:
        docket, view = Docket(RECIPE.audit), clerk.view
        docket.follow(view)
        drawn = docket.screener(view, view.path[-1]) if view.path[-1].updates else NODES[0].node
        identity = next(one for one in NODES if one.node == drawn)
        self.clerk, self.said = clerk, list[Screening]()
        self.loop = SimLoop(1, event_budget=1_000_000)
        host = SimHost(
            self.loop, SimNetwork(self.loop), "here", 1, SimDisk(), node=identity.node, link=Link()
        )
        self.shelf = Shelf(host, meanwhile)
        invitation = Invitation(
            coordinator=COORDINATOR.node, addresses=("gone",), run=RUN, token="t", name="ann"
        )
        link = ControlLink(host, identity, invitation, lambda event: None, lambda addresses: None)
        supply = Supply(host, self.shelf, Swarm(host, self.shelf, RUN), link)
        self.auditor = Auditor(host, identity, self.shelf, supply, self._hear)
        genesis = clerk.view.genesis
        assert genesis is not None
        learner = Learner(ToyTrainer(genesis.layout, 2), RECIPE, 4096)
        rules = RECIPE.strategy.fold_rules()
        self.auditor.equip(Means(recipe=RECIPE, learner=learner, rules=rules, items=4096, step_seconds=0.01))
        self._state = initial_state(genesis.layout, torch.zeros(genesis.layout.numel), rules.slots)

    async def _hear(self, message: Message) -> None:
        if isinstance(message, Audited) and message.screening is not None:
            self.said.append(msgspec.msgpack.decode(message.screening.payload, type=Screening))
            self.clerk.append(Stopped(reason="enough"))

    def screen(self) -> Screening:
        view = self.clerk.view
        works = [update.work for update in view.path[-1].updates]
        assert works[0] is not None
        self.auditor.adopted(works[0].at, self._state)

        async def main() -> None:
            async with asyncio.timeout(60.0):
                await self.auditor.keep_auditing(view, asyncio.Lock())

        self.loop.run(main())
        (word,) = self.said
        return word


def _blobs(steps: Sequence[Step]) -> set[BlobId]:
    return {update.claim.blob for step in steps for update in step.updates}


def _long_log() -> Region:
    clerk = Region()
    for place in range(SEALS):
        at = clerk.round(*NODES)
        if place == SEALS - 30:
            clerk.snapshot(at, "s", NODES[0].node)
    return clerk


def test_after_a_graft_or_a_straggler_no_more_updates_are_kept_than_before() -> None:
    clerk = _long_log()
    path = clerk.view.path
    for happens in (lambda: None, clerk.graft, lambda: clerk.round(NODES[0])):
        happens()
        kept = Screener(clerk).auditor.kept(clerk.view)
        assert _blobs(path[-FULL:]) <= kept
        assert not _blobs(path[: SEALS - FULL - 1]) & kept


def test_a_seal_of_one_straggler_has_no_more_updates_read_than_others() -> None:
    clerk = _long_log()
    clerk.round(NODES[0])
    screener = Screener(clerk)
    screener.screen()
    path = clerk.view.path
    assert _blobs(path[SEALS - FULL :]) <= screener.shelf.asked
    assert not _blobs(path[: SEALS - FULL]) & screener.shelf.asked


def test_a_log_that_goes_on_does_not_change_what_a_seal_is_compared_with() -> None:
    clerk = _long_log()
    screened = clerk.view.path[-1]

    def go_on(blob: BlobId) -> None:
        if blob == screened.updates[0].claim.blob and clerk.view.path[-1] is screened:
            clerk.graft()

    screener = Screener(clerk, go_on)
    word = screener.screen()
    path = clerk.view.path
    assert word.at.position == screened.position and path[-1].graft is not None
    assert _blobs(path[SEALS - 1 - FULL :]) <= screener.shelf.asked
    assert not _blobs(path[: SEALS - 1 - FULL]) & screener.shelf.asked


def test_a_seal_of_which_nothing_is_here_is_screened_after_a_graft() -> None:
    clerk = Region()
    clerk.round(*NODES)
    clerk.graft()
    at = clerk.round(*NODES)
    word = Screener(clerk).screen()
    assert word.at.position == at and len(word.scores) == len(NODES)
