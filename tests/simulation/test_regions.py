"""Two levels of log: regions train in rounds of their own, and their hubs carry the work up and the news down."""

import asyncio
from typing import Any

import pytest
import torch

from shoal.base.disk import SubDisk
from shoal.coordinator.events import RewindAsked
from shoal.replica.blobs import BlobStore
from shoal.replica.sharded import fold_stored
from shoal.replica.state import State, decode_state, state_hash
from shoal.replica.update import open_update
from shoal.runlog.entries import Claim
from shoal.runlog.view import RunView

from .regions import RUN, Country, halos_recipe

TARGET = torch.linspace(-1, 1, 40)
PLAIN = {"codec": {"kind": "none"}}
ROUNDED = 0.004


def _recipe(**changes: Any) -> Any:
    region = {
        "schedule": {"steps": 3, "fragments": 2},
        "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        **PLAIN,
    }
    strategy = {"preset": "halos", "schedule": {"steps": 12, "overlap": 24, "fragments": 2}, **PLAIN}
    return halos_recipe(strategy={**strategy, "region": region}, **changes)


class Ledger:
    """Up to where in its region each of a hub's claims goes."""

    def __init__(self, country: Country, region: str) -> None:
        self._country, self._region = country, region
        self.claimed: dict[int, int] = {-1: 0}

    async def watch(self) -> None:
        while True:
            hub = self._country.machines[f"hub-{self._region}"]
            learner = getattr(hub.service, "learner", None)
            if hub.host is not None and hub.host.alive and learner is not None:
                self.claimed.setdefault(learner.last_sent, hub.service._claimed)
            await asyncio.sleep(0.02)


def _replayed(country: Country, region: str) -> tuple[RunView, dict[int, State]]:
    """Every state of a region's path, folded from its coordinator's disk; the last update may be on its way there."""
    view = country.region_view(region)
    store = BlobStore(
        SubDisk(country.machines[f"seat-{region}"].disk, f"runs/{view.run}"), lambda point: None
    )
    assert view.genesis is not None
    rules = country.hub(region).region.service.runs[view.run].machine.recipe.strategy.fold_rules()
    states = {0: decode_state(store.get(view.genesis.snapshot), view.genesis.layout)}
    at = 0
    for step in view.path:
        if step is view.path[-1] and not all(store.has(blob) for blob, _, _ in step.sources):
            break
        states[step.position] = fold_stored(states[at], step, store.get, rules)
        at = step.position
    return view, states


def _own_way(view: RunView, states: dict[int, State], after: int, upto: int) -> torch.Tensor:
    """What a region's own rounds moved it by, between two of its positions."""
    way, at = torch.zeros(40), after
    for step in view.path:
        if after < step.position <= upto:
            if step.graft is None:
                way += states[step.position].params - states[at].params
            at = step.position
    return way


def _values(country: Country, region: str, claim: Claim) -> torch.Tensor:
    disk = SubDisk(country.machines[f"hub-{region}"].disk, f"runs/{RUN}")
    layout = country._trainer().layout
    codec = country.recipe.strategy.fold_rules().codec
    opened = open_update(BlobStore(disk, lambda point: None).get(claim.blob), layout, (0, 1), codec)
    assert opened is not None
    out = torch.empty(40)
    for index, part in enumerate(layout.fragments):
        opened[index].decode(0, part.numel, 1.0, out[part.start : part.stop])
    return out


def _check_updates(country: Country, region: str, ledger: Ledger, *, skip: set[int] = frozenset()) -> int:  # type: ignore[assignment]
    """Every update that the parent took is what the region's members trained between two attested positions, without
    the news that entered meanwhile; how many there are."""
    view, states = _replayed(country, region)
    hub, checked, longest = country.hub(region).identity.node, 0, 0.0
    for step in country.view.path:
        for update in step.updates:
            claim = update.claim
            if claim.node != hub or claim.sequence in skip:
                continue
            after, upto = ledger.claimed[claim.sequence - 1], ledger.claimed[claim.sequence]
            assert view.attested[upto], "a hub claims what its members attested"
            way = _own_way(view, states, after, upto)
            sent = -_values(country, region, claim)
            assert float((sent - way).abs().max()) < ROUNDED, "but for what the graft's code rounds away"
            longest, checked = max(longest, float(way.abs().max())), checked + 1
    assert longest > 10 * ROUNDED, "there is something to compare"
    return checked


def _one_state_everywhere(country: Country, region: str) -> None:
    _, states = _replayed(country, region)
    for machine in country.machines.values():
        service = machine.service
        if machine.name[0] == region and service.state is not None and service.machine.at in states:
            assert state_hash(service.state) == state_hash(states[service.machine.at])


def test_two_regions_train_one_model_over_slow_links() -> None:
    country = Country({"a": 3, "b": 3}, recipe=_recipe())
    ledgers = {region: Ledger(country, region) for region in country.regions}

    async def story() -> None:
        watches = [asyncio.create_task(ledger.watch()) for ledger in ledgers.values()]
        country.start()
        await country.rounds(12)
        for watch in watches:
            watch.cancel()

    country.play(story)
    authors = {update.claim.node for step in country.view.path for update in step.updates}
    assert authors == {country.hub(region).identity.node for region in "ab"}
    for region, ledger in ledgers.items():
        assert _check_updates(country, region, ledger) >= 3
        _one_state_everywhere(country, region)
        grafts = [step for step in country.region_view(region).path if step.graft]
        assert len(grafts) >= 3
        assert all(country.region_view(region).attested[step.position] for step in grafts[:-1])
    state = country.hub("a").state
    assert state is not None and float((state.params - TARGET).norm()) < 0.25 * float(TARGET.norm())


def test_a_region_that_comes_late_begins_where_the_others_are() -> None:
    membership = {"min_nodes": 1, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}
    country = Country({"a": 2, "b": 2}, recipe=_recipe(membership=membership))
    early = [
        name
        for name in country.machines
        if name == "parent" or "a" in name.partition("-")[2] or name[0] == "a"
    ]

    async def story() -> None:
        country.start(*early)
        await country.rounds(10)
        country.start(*(name for name in country.machines if name not in early))
        await country.until(lambda: bool(country.hub("b").region.run), 60, "the region")

    country.play(story)
    _, states = _replayed(country, "b")
    assert float((states[0].params - TARGET).norm()) < 0.3 * float(TARGET.norm())


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_hub_that_was_killed_goes_on_where_it_was(all_of_it: bool) -> None:
    """Without its hub a region trains on; without its coordinator too, it waits. Nothing of it is lost or counted
    twice, either way."""
    country = Country({"a": 3, "b": 3}, recipe=_recipe())
    ledger = Ledger(country, "a")
    seen: dict[str, int] = {}

    async def story() -> None:
        watch = asyncio.create_task(ledger.watch())
        country.start()
        await country.rounds(6)
        before = country.region_view("a").round
        gone = ["hub-a", "seat-a"] if all_of_it else ["hub-a"]
        country.kill(*gone)
        await asyncio.sleep(6)
        if not all_of_it:
            assert country.region_view("a").round > before + 3
        seen["sequence"] = max(ledger.claimed)
        country.start(*reversed(gone))
        await country.until(lambda: max(ledger.claimed) > seen["sequence"] + 3, 120, "more claims")
        await country.rounds(4)
        watch.cancel()

    country.play(story)
    assert _check_updates(country, "a", ledger) >= seen["sequence"] + 2
    _one_state_everywhere(country, "a")


def test_news_that_were_on_their_way_when_the_hub_died_enter_once() -> None:
    country = Country({"a": 3, "b": 3}, recipe=_recipe())
    ledger = Ledger(country, "a")
    lost: list[int] = []

    async def story() -> None:
        watch = asyncio.create_task(ledger.watch())
        country.start()
        await country.rounds(5)
        for _ in range(3):
            hub = country.hub("a")
            await country.until(lambda: hub._graft is not None and hub._entered_at() is None, 60, "news")  # noqa: B023
            assert hub._graft is not None
            lost.append(hub._graft.parent.position)
            country.kill("hub-a", "seat-a")
            await asyncio.sleep(1)
            country.start("seat-a", "hub-a")
            await country.until(lambda: country.hub("a").learner is not None, 60, "the hub")
            await country.rounds(3)
        watch.cancel()

    country.play(story)
    entered = [step.graft.parent.position for step in country.region_view("a").path if step.graft]
    assert set(lost) <= set(entered) and len(set(entered)) == len(entered)
    assert _check_updates(country, "a", ledger) >= 3


def test_a_region_that_is_rewound_finds_its_parent_again() -> None:
    country = Country({"a": 3, "b": 3}, recipe=_recipe())
    ledger = Ledger(country, "a")

    async def story() -> None:
        country.start()
        await country.rounds(6)
        view = country.region_view("a")
        grafts = [step.position for step in view.path if step.graft]
        to = view.kept_states()[0].at
        assert to < grafts[-1]
        seat = country.machines["seat-a"].service
        await seat.post(view.run, RewindAsked(to, "a test"))
        await country.until(lambda: view.rewound_at > 0, 10, "the rewind")
        await country.until(
            lambda: any(s.graft and s.position > view.rewound_at for s in view.path), 60, "news"
        )
        watch = asyncio.create_task(ledger.watch())
        await country.rounds(8)
        watch.cancel()

    country.play(story)
    first = min(number for number in ledger.claimed if number >= 0)
    assert _check_updates(country, "a", ledger, skip=set(range(first + 2))) >= 1
    state = country.hub("a").state
    assert state is not None and float((state.params - TARGET).norm()) < 0.2 * float(TARGET.norm())


def test_news_that_are_undone_before_the_hub_has_seen_them_enter_come_again() -> None:
    country = Country({"a": 3, "b": 3}, recipe=_recipe())

    async def story() -> None:
        country.start()
        await country.rounds(6)
        view, hub, seat = country.region_view("a"), country.hub("a"), country.machines["seat-a"].service
        await country.until(lambda: not hub._entered and hub._graft is not None, 60, "news on their way")
        while hub._entered_at() is None:  # noqa: ASYNC110 - at once, before the hub looks.
            await asyncio.sleep(0.001)
        await seat.post(view.run, RewindAsked(view.kept_states()[0].at, "a test"))
        while view.rewound_at <= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not hub._entered and hub._entered_at() is None, "it never saw them"
        await country.until(
            lambda: any(s.graft and s.position > view.rewound_at for s in view.path), 60, "news"
        )
        await country.rounds(6)

    country.play(story)


def test_the_parent_may_be_rewound_too() -> None:
    country = Country({"a": 2, "b": 2}, recipe=_recipe())

    async def story() -> None:
        country.start()
        await country.rounds(6)
        to = country.view.kept_states()[0].at
        await country.machines["parent"].service.post(RUN, RewindAsked(to, "a test"))
        await country.until(lambda: country.view.rewound_at > 0, 10, "the rewind")
        await country.rounds(8)

    country.play(story)
    state = country.hub("a").state
    assert state is not None and float((state.params - TARGET).norm()) < 0.2 * float(TARGET.norm())


def test_a_region_counts_for_no_more_than_was_planned_for_it() -> None:
    country = Country({"a": 6, "b": 2}, recipe=_recipe())

    async def story() -> None:
        country.start()
        await country.rounds(8)

    country.play(story)
    weights = [update.weight for step in country.view.path for update in step.updates]
    assert max(weights) <= (12 + 24) * 2
    large = country.hub("a").identity.node
    claims = [u.claim for step in country.view.path for u in step.updates if u.claim.node == large]
    assert claims and all(claim.samples <= 72 for claim in claims)


def test_when_the_parent_run_ends_so_do_its_hubs() -> None:
    country = Country({"a": 2, "b": 2}, recipe=_recipe(budget={"rounds": 3}))

    async def story() -> None:
        country.start()
        hubs = [country.machines[f"hub-{region}"] for region in "ab"]
        await country.until(lambda: all(m.task is not None and m.task.done() for m in hubs), 200, "the end")
        assert all(m.task is not None and "rounds done" in m.task.result() for m in hubs)

    country.play(story)
    assert country.view.stopped and country.view.best_start().at == country.view.at
