"""Folding through digests in the simulated world: folders die, lie and come back, and everybody has one state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.base.disk import SubDisk
from shoal.base.ids import BlobId
from shoal.coordinator.events import RewindAsked, StopAsked
from shoal.node.service import NodeService
from shoal.replica.blobs import CHUNK_BYTES, BlobStore
from shoal.replica.sharded import fold_stored
from shoal.replica.state import decode_state, state_hash
from shoal.runlog.entries import Digests, Folding, Plan, Rewind
from shoal.runlog.view import Step
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Folded
from shoal.wire.signed import parse
from shoal.worlds.simulated.liars import FalseFolder, Liar

from .harness import COORDINATOR, RUN, Fleet, toy_recipe


def _recipe(digest: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    strategy = {
        "preset": "diloco",
        "schedule": {"steps": 3, "fragments": 2},
        "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        "codec": {"kind": "int8", "error_feedback": True},
        "digest": {
            "kind": "two-bit",
            "folders": 3,
            "shards": 6,
            "when": "always",
            "deadline_s": 5.0,
            **(digest or {}),
        },
        **changes.pop("strategy", {}),
    }
    membership = {"min_nodes": 4, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}
    return toy_recipe(**{"strategy": strategy, "membership": membership, **changes})


def _entries(fleet: Fleet) -> list[Digests]:
    return [body for body in fleet.bodies(Digests) if isinstance(body, Digests)]


def _one_state(fleet: Fleet, *without: str) -> bool:
    """Whoever stands at one place has one state, and all stand near the end."""
    states = {name: where for name, where in fleet.states().items() if name not in without}
    recent = {step.position for step in fleet.view.path[-3:]}
    at = {at: {state for here, state in states.values() if here == at} for at, _ in states.values()}
    return set(at) <= recent and all(len(equal) == 1 for equal in at.values())


def _replays(fleet: Fleet, rounds: int = 3) -> None:
    """What is stored, folded from the beginning, is what everybody attested. The coordinator has it all, but for what
    it was about to fetch when it died."""
    assert fleet.view.genesis is not None
    disks = [SubDisk(machine.disk, f"runs/{RUN}") for machine in fleet.machines.values()]
    stores = [BlobStore(disk, lambda point: None) for disk in disks]

    def read(blob: BlobId) -> bytes:
        return next(store for store in stores if store.has(blob)).get(blob)

    state = decode_state(read(fleet.view.genesis.snapshot), fleet.view.genesis.layout)
    compared = 0
    for step in fleet.view.path:
        words = fleet.view.attested.get(step.position, {})
        if not words:
            continue
        state = fold_stored(state, step, read, fleet.recipe.strategy.fold_rules())
        assert {word.state for word in words.values()} == {state_hash(state)}
        assert {word.how for word in words.values()} == {"adopted" if step.adopted else "folded"}
        compared += 1
    assert compared >= rounds


def _dies_at(fleet: Fleet, name: str, point: str) -> list[str]:
    """A machine dies when it gets there; whoever has died."""
    died: list[str] = []
    host = fleet.machines[name].host
    assert host is not None

    def at(here: str) -> bool:
        died.extend([name] if here == point else [])
        return here == point

    host.on_point = at
    return died


@pytest.mark.parametrize("folders", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["none", "two-bit"])
def test_every_round_is_folded_by_few_for_all(folders: int, kind: str) -> None:
    fleet = Fleet(nodes=4, recipe=_recipe({"folders": folders, "kind": kind}))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(7)
        await fleet.until(lambda: fleet.view.unsettled is None and _one_state(fleet), 30, "one state")

    fleet.play(story)
    assert all(len(shard.folders) == min(folders, 4) for step in fleet.view.path for shard in step.shards)
    settled = [step for step in fleet.view.path if step.digests is not None]
    assert len(settled) >= 6 and not any(step.folded_by_all for step in settled)
    assert {shard.since for shard in settled[-1].shards} == {settled[-2].position}, "residuals live on"
    assert len(fleet.view.snapshots) >= 3
    _replays(fleet)


def test_a_digest_that_loses_nothing_leads_where_the_plain_fold_does() -> None:
    """Same seed, same fleet: with an exact codec both ways lead to the same model."""
    ways = []
    for digest in ({"kind": "none", "folders": 1, "shards": 2}, None):
        recipe = _recipe(digest, strategy={"codec": {"kind": "none"}})
        if digest is None:
            recipe = recipe.model_copy(
                update={"strategy": recipe.strategy.model_copy(update={"digest": None})}
            )
        fleet = Fleet(nodes=4, recipe=recipe)

        async def story(fleet: Fleet = fleet) -> None:
            fleet.start()
            await fleet.rounds(5)
            await fleet.until(lambda: fleet.view.unsettled is None and _one_state(fleet), 30, "one state")

        fleet.play(story)
        words = [fleet.view.attested.get(step.position, {}) for step in fleet.view.path[:3]]
        ways.append([{word.state for word in each.values()} for each in words])
    assert ways[0] == ways[1] and all(len(states) == 1 for states in ways[0])


def test_updates_of_several_chunks_are_fetched_shard_by_shard() -> None:
    size = 3 * CHUNK_BYTES  # Values: an update has twelve chunks, each shard more than one.
    recipe = _recipe({"kind": "int8", "folders": 1, "shards": 4}, strategy={"codec": {"kind": "none"}})
    fleet = Fleet(nodes=4, recipe=recipe, size=size)
    for machine in fleet.machines.values():
        machine.link = replace(machine.link, up_bytes_s=1e9, down_bytes_s=1e9)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2, 120)
        await fleet.until(lambda: len(_entries(fleet)) >= 2, 60, "digests")

    fleet.play(story)
    assert all(len(entry.items) >= 4 for entry in _entries(fleet))


# --- folders that fail -------------------------------------------------------------------------------------


def test_a_folder_that_dies_before_its_word_costs_little() -> None:
    fleet = Fleet(nodes=4, recipe=_recipe())

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        died = _dies_at(fleet, "n1", "node.before-folding")
        await fleet.until(lambda: bool(died), 30, "death")
        before = len(_entries(fleet))
        await fleet.until(lambda: len(_entries(fleet)) > before, 20, "digests without it")
        await fleet.rounds(2)
        fleet.start("n1")
        await fleet.until(lambda: "n1" in fleet.contributors(fleet.view.at), 60, "its return")
        await fleet.rounds(2)
        await fleet.until(lambda: _one_state(fleet), 30, "one state")

    fleet.play(story)
    missed = [entry for entry in _entries(fleet) if len(entry.words) == 3 and len(entry.items) >= 6]
    assert missed, "two of three agreed, which is enough"
    _replays(fleet)


def test_with_all_folders_of_a_shard_gone_everybody_folds_it() -> None:
    fleet = Fleet(nodes=4, recipe=_recipe({"folders": 1}))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        died = _dies_at(fleet, "n2", "node.before-folding")
        await fleet.until(lambda: bool(died), 30, "death")
        await fleet.rounds(2)
        await fleet.until(lambda: _one_state(fleet), 30, "one state")

    fleet.play(story)
    assert any(step.folded_by_all and step.adopted for step in fleet.view.path)
    _replays(fleet)


PATIENT = {"min_nodes": 4, "lease_s": 20.0, "heartbeat_s": 1.0, "reconnect_s": 20.0}


async def _waiting_for(fleet: Fleet, name: str, point: str) -> Step:
    """Rounds go by until one waits for this folder, which died at this point; the seal that waits."""
    await fleet.rounds(3)
    died = _dies_at(fleet, name, point)
    await fleet.until(lambda: bool(died), 30, "death")
    waiting = fleet.view.unsettled
    assert waiting is not None and 0 not in {shard.since for shard in waiting.shards}
    return waiting


def test_a_folder_that_lost_its_residual_says_nothing_of_its_shards() -> None:
    fleet = Fleet(nodes=4, recipe=_recipe({"deadline_s": 25.0}, membership=PATIENT))

    async def story() -> None:
        fleet.start()
        waiting = await _waiting_for(fleet, "n0", "node.before-folding")
        disk = SubDisk(fleet.machines["n0"].disk, f"runs/{RUN}")
        lost = [name for name in disk.list("") if name.startswith("residual-")]
        assert len(lost) >= 2
        for name in lost:
            disk.remove(name)
        disk.sync_folder("")
        fleet.start("n0")
        await fleet.until(lambda: fleet.view.unsettled is None, 30, "digests")
        step = fleet.view.step_at(waiting.position)
        assert step is not None and not step.folded_by_all, "the two others are enough"
        node = fleet.id_of("n0")
        assert any(node in shard.folders for shard in step.shards)
        assert not any(item is not None and node in item.folders for item in step.digests or ())
        await fleet.rounds(2)
        await fleet.until(lambda: fleet.view.unsettled is None and _one_state(fleet), 30, "one state")
        assert any(node in item.folders for item in fleet.view.path[-1].digests or () if item is not None)

    fleet.play(story)
    words = [parse(signed.payload, Folding) for entry in _entries(fleet) for signed in entry.words]
    assert [word.items for word in words if word is not None and not word.items] == [()]
    _replays(fleet)


def test_a_restarted_folder_folds_to_the_same_digest_again() -> None:
    """It dies after its residual is durable and before anybody knows: the next fold begins from the one before."""
    fleet = Fleet(nodes=4, recipe=_recipe({"deadline_s": 25.0}, membership=PATIENT))

    async def story() -> None:
        fleet.start()
        waiting = await _waiting_for(fleet, "n3", "node.after-residual")
        fleet.start("n3")
        await fleet.until(lambda: fleet.view.unsettled is not waiting, 30, "digests")
        step = fleet.view.step_at(waiting.position)
        assert step is not None and not step.folded_by_all
        assert all(item is not None and len(item.folders) == 3 for item in step.digests or ())
        await fleet.rounds(2)

    fleet.play(story)
    _replays(fleet)


# --- folders that lie --------------------------------------------------------------------------------------


def test_one_lying_folder_of_three_changes_nothing_and_is_seen() -> None:
    fleet = Fleet(nodes=5, recipe=_recipe())
    fleet.lies("n1", FalseFolder)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(6, 120)
        await fleet.until(lambda: _one_state(fleet, "n1"), 60, "one state")

    fleet.play(story)
    liar, disputed = fleet.id_of("n1"), 0
    for entry in _entries(fleet):
        step = next((one for one in fleet.view.path if one.position == entry.seal), None)
        words = [word for signed in entry.words if (word := parse(signed.payload, Folding)) is not None]
        said = {
            number: {blob for w in words for n, blob, _ in w.items if n == number} for number in range(99)
        }
        for number, versions in said.items():
            if len(versions) > 1:
                disputed += 1
                assert step is None or number in step.folded_by_all, "a dissent makes everybody fold it"
                truth = {blob for w in words if w.node != liar for n, blob, _ in w.items if n == number}
                assert len(truth) == 1, "the honest agree, and the log shows who does not"
    assert disputed >= 3
    for step in fleet.view.path:
        for item in step.digests or ():
            assert item is None or set(item.folders) - {liar}, "no digest stands on a liar's word alone"
    _replays(fleet)


def test_two_colluding_folders_do_not_outvote_an_honest_one() -> None:
    """Both say the same untruth: the third's dissent is enough for everybody to fold the shard."""

    class Colluder(Liar):
        def _folding(self, step: Step, items: Any) -> Folding:
            wrong = self.blobs.put(b"what we agreed on")
            return super()._folding(step, tuple((number, wrong, 17) for number, _, _ in items))

    fleet = Fleet(nodes=5, recipe=_recipe())
    for name in ("n1", "n2"):
        fleet.lies(name, Colluder)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(5, 120)
        await fleet.until(lambda: _one_state(fleet, "n1", "n2"), 60, "one state")

    fleet.play(story)
    honest = {fleet.id_of(name) for name in ("n0", "n3", "n4")}
    items = [item for step in fleet.view.path for item in step.digests or () if item is not None]
    assert all(set(item.folders) & honest for item in items)


def test_words_of_others_shards_and_of_other_seals_are_not_heard() -> None:
    class Usurper(NodeService):
        """Speaks for every shard, and again for seals that are settled."""

        def _folding(self, step: Step, items: Any) -> Folding:
            word = super()._folding(step, items)
            every = tuple((number, items[0][1], items[0][2]) for number in range(len(step.shards)))
            return Folding(run=word.run, node=word.node, at=word.at, items=every)

    fleet = Fleet(nodes=5, recipe=_recipe({"folders": 1, "shards": 10}))
    fleet.lies("n0", Usurper)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4, 120)
        await fleet.until(lambda: _one_state(fleet, "n0"), 60, "one state")

    fleet.play(story)
    for step in fleet.view.path:
        for shard, item in zip(step.shards, step.digests or (), strict=False):
            assert item is None or set(item.folders) <= set(shard.folders)
            assert item is None or fleet.id_of("n0") not in item.folders, "its word was refused whole"


# --- the log goes on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["coordinator.after-seal", "coordinator.before-digests", "coordinator.after-digests"]
)
def test_a_coordinator_that_dies_in_between_goes_on(point: str) -> None:
    fleet = Fleet(nodes=4, recipe=_recipe())

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        died = _dies_at(fleet, COORDINATOR, point)
        await fleet.until(lambda: bool(died), 30, "death")
        fleet.start(COORDINATOR)
        await fleet.rounds(3)
        await fleet.until(lambda: fleet.view.unsettled is None and _one_state(fleet), 30, "one state")

    fleet.play(story)
    settled = [step for step in fleet.view.path if step.digests is not None]
    assert len({entry.seal for entry in _entries(fleet)}) == len(_entries(fleet)), "one a seal"
    assert not any(step.folded_by_all for step in settled), "the folders said it all again"
    _replays(fleet)


def test_a_joiner_folds_forward_by_digests_and_needs_no_update() -> None:
    recipe = _recipe(storage={"snapshot_every": 4, "keep_bytes": 0})
    fleet = Fleet(nodes=5, recipe=recipe)

    async def story() -> None:
        fleet.start(COORDINATOR, "n0", "n1", "n2", "n3")
        await fleet.rounds(7)
        await fleet.until(lambda: fleet.view.best_start().at > 0, 30, "a saved state")
        saved, updates = fleet.view.best_start().at, set[BlobId]()
        fleet.start("n4")
        await fleet.until(lambda: "n4" in fleet.contributors(fleet.view.at), 60, "joining")
        store = BlobStore(SubDisk(fleet.machines["n4"].disk, f"runs/{RUN}"), lambda point: None)
        position = next(
            step.position for step in fleet.view.path if "n4" in fleet.contributors(step.position)
        )
        for step in fleet.view.path:
            if saved < step.position < position:
                updates |= {update.claim.blob for update in step.updates}
                assert all(store.has(item.blob) for item in step.digests or () if item is not None)
        pushed = sum(store.has(blob) for blob in updates)
        assert len(updates) >= 8 and pushed <= 1, "what others pushed here, to have it held, and no more"
        await fleet.until(lambda: _one_state(fleet), 30, "one state")

    fleet.play(story)
    _replays(fleet)


@pytest.mark.parametrize("when", ["settled", "waiting"])
def test_a_rewind_begins_residuals_anew(when: str) -> None:
    fleet = Fleet(nodes=4, recipe=_recipe())

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)
        wants_waiting = when == "waiting"
        await fleet.until(lambda: (fleet.view.unsettled is not None) == wants_waiting, 30, when)
        to = fleet.view.path[-3].position
        await fleet.coordinator.post(RUN, RewindAsked(to, "asked"))
        await fleet.until(lambda: bool(fleet.bodies(Rewind)), 30, "rewind")
        await fleet.rounds(1)
        assert {shard.since for shard in fleet.view.path[-1].shards} == {0}
        await fleet.rounds(2)
        await fleet.until(lambda: fleet.view.unsettled is None and _one_state(fleet), 30, "one state")
        assert not fleet.view.path[-1].folded_by_all

    fleet.play(story)


def test_a_run_is_stopped_while_its_digests_are_out() -> None:
    fleet = Fleet(nodes=4, recipe=_recipe())

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        await fleet.until(lambda: fleet.view.unsettled is not None, 30, "a seal that waits")
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        await fleet.until(lambda: fleet.coordinator.runs[RUN].machine.finished, 60, "the end")

    fleet.play(story)
    assert fleet.view.stopped is not None and fleet.view.path[-1].settled
    _replays(fleet, rounds=2)


def test_digests_begin_when_the_bytes_say_so() -> None:
    fleet = Fleet(nodes=8, recipe=_recipe({"when": "auto", "folders": 1, "kind": "one-bit"}), size=300)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)

    fleet.play(story)
    first, *later = fleet.view.path
    assert not first.shards, "nobody knew yet how large an update is"
    assert all(step.shards for step in later)
    reasons = [body.reason for body in fleet.bodies(Plan) if isinstance(body, Plan) and body.folders]
    assert all("through digests of 1 folders" in reason and "instead of" in reason for reason in reasons)


def test_folders_words_are_said_again_until_the_log_has_them() -> None:
    """Every first word is lost on the way."""
    fleet = Fleet(nodes=4, recipe=_recipe())
    seen: set[tuple[str, bytes]] = set()

    class Mumbler(NodeService):
        async def _carry_out(self, effect: Any) -> None:
            message = getattr(effect, "message", None)
            if (
                isinstance(message, Folded)
                and (key := (self.identity.node, message.word.payload)) not in seen
            ):
                seen.add(key)
                return
            await super()._carry_out(effect)

    for machine in fleet.nodes:
        fleet._liars[machine.name] = Mumbler

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)

    fleet.play(story)
    assert seen and not any(step.folded_by_all for step in fleet.view.path if step.digests is not None)
