"""A coordinator that signs two entries for one position: one node finds out, and everybody stops with the proof.

A node that has stopped is gone from the network here, as a process that has ended is: nobody can ask it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Refused
from shoal.coordinator.events import StopAsked
from shoal.runlog.chain import Equivocation, make_link, read_link
from shoal.runlog.entries import Rewind, Stopped
from shoal.runlog.evidence import encode_proof, read_proof
from shoal.runlog.view import verify_log
from shoal.wire.identity import Identity
from shoal.wire.messages import Entries, encode
from shoal.worlds.simulated.liars import Liar, Shut

from .harness import COORDINATOR, RUN, Fleet

WITHIN_S = 60.0
"""A few rounds, and the time that one who has proof stays for others to ask."""


def _other_entry(fleet: Fleet, position: int) -> bytes:
    """What an equivocating coordinator signs for a position where it has signed something else."""
    view, finding = verify_log(fleet.referee.entries[:position])
    assert finding is None
    body = Stopped(reason="you are the only one I tell")
    identity = fleet.machines[COORDINATOR].identity
    return make_link(identity, RUN, view.head, view.term + 1, 0, body).encoded


async def _show(fleet: Fleet, name: str, entry: bytes) -> None:
    connection = fleet.coordinator.runs[RUN].connections[fleet.id_of(name)]
    await connection.channel.send(encode(Entries(items=(entry,))))


def _make_deaf(fleet: Fleet) -> None:
    """The coordinator means it: it takes no proof, and gives none."""
    host = fleet.machines[COORDINATOR].host
    assert host is not None and host.resources is not None
    host.resources = Shut(host.resources, takes=False)


async def _until_all_stop(fleet: Fleet, *names: str) -> None:
    """Wait until these nodes, or all, have ended; whoever has ended answers nobody."""
    began = fleet.loop.time()
    left = {machine.name: machine for machine in fleet.nodes if not names or machine.name in names}
    while left:
        assert fleet.loop.time() - began < WITHIN_S, f"{sorted(left)} go on: {fleet.situation()}"
        for name, machine in list(left.items()):
            assert machine.task is not None and machine.host is not None
            if machine.task.done():
                machine.host.alive = False
                fleet.network.drop_host(machine.host)
                del left[name]
        await asyncio.sleep(0.05)


def _proof_of(fleet: Fleet, name: str) -> Equivocation:
    """The proof that a node stopped with, as it lies on its disk."""
    machine = fleet.machines[name]
    assert machine.task is not None
    error = machine.task.exception()
    assert isinstance(error, ShoalError) and error.code == "SH-LOG-02", error
    kept = machine.disk.read(f"runs/{RUN}/proof-{RUN[:12]}.msgpack")
    proof = read_proof(kept, RUN, fleet.machines[COORDINATOR].identity.public)
    assert proof is not None
    return proof


def _hide(fleet: Fleet, *names: str) -> None:
    for name in names:
        fleet.machines[name].inbound = False


async def _begin(fleet: Fleet) -> None:
    fleet.start()
    await fleet.rounds(2)


def _play(fleet: Fleet, story: Callable[[], Awaitable[None]]) -> None:
    fleet.play(story)
    for machine in fleet.nodes:
        _proof_of(fleet, machine.name)


@pytest.mark.parametrize("loss", [0.0, 0.1], ids=["good lines", "lossy lines"])
@pytest.mark.parametrize("finder", ["n0", "n4"], ids=["reachable", "behind NAT"])
def test_what_one_node_finds_stops_them_all(finder: str, loss: float) -> None:
    """n4 and n5 take no connections; the coordinator does not listen to anybody."""
    fleet = Fleet(seed=3, nodes=6)
    _hide(fleet, "n4", "n5")

    async def story() -> None:
        await _begin(fleet)
        _make_deaf(fleet)
        fleet.network.faults.loss = loss
        for _ in range(5 if loss else 1):  # A frame may be lost.
            await _show(fleet, finder, _other_entry(fleet, fleet.view.at))
        await _until_all_stop(fleet)

    _play(fleet, story)


def test_one_who_is_told_another_story_is_found_by_comparing() -> None:
    """Nobody is shown both: n1 alone gets another next entry, and follows it until it compares."""
    fleet = Fleet(seed=4, nodes=4)
    _hide(fleet, "n1", "n3")

    async def story() -> None:
        await _begin(fleet)
        _make_deaf(fleet)
        await asyncio.sleep(0.1)
        view, _ = verify_log(fleet.referee.entries)
        back = Rewind(to=view.kept_states()[0].at, reason="only for you")
        identity = fleet.machines[COORDINATOR].identity
        await _show(fleet, "n1", make_link(identity, RUN, view.head, view.term, 0, back).encoded)
        await _until_all_stop(fleet)

    _play(fleet, story)


@pytest.mark.parametrize("hidden", [("n2",), ("n0", "n1", "n2")], ids=["one behind NAT", "all behind NAT"])
def test_a_coordinator_that_is_shown_the_proof_stops_the_run(hidden: tuple[str, ...]) -> None:
    """As after a copy of its store was started elsewhere: it did nothing wrong that it knows of."""
    fleet = Fleet(seed=5, nodes=4)
    _hide(fleet, *hidden)
    late = fleet.machines["n3"]

    async def story() -> None:
        fleet.start(COORDINATOR, "n0", "n1", "n2")
        await fleet.rounds(2)
        await _show(fleet, "n0", _other_entry(fleet, fleet.view.at))
        await _until_all_stop(fleet, "n0", "n1", "n2")
        assert RUN not in fleet.coordinator.runs
        assert fleet.coordinator.broken[RUN].code == "SH-LOG-02"
        length = len(fleet.referee.entries)
        fleet.start("n3")
        await _until_all_stop(fleet, "n3")
        assert len(fleet.referee.entries) == length, "it signs nothing more"

    fleet.play(story)
    for name in ("n0", "n1", "n2"):
        _proof_of(fleet, name)
    assert late.task is not None
    refused = late.task.exception()
    assert isinstance(refused, ShoalError) and refused.code == "SH-LOG-02"


def test_what_is_decided_after_the_proof_is_not_signed() -> None:
    fleet = Fleet(nodes=2)

    async def story() -> None:
        await _begin(fleet)
        host, position = fleet.machines[COORDINATOR].host, fleet.view.at
        assert host is not None and host.resources is not None
        pair = Equivocation(fleet.referee.entries[position], _other_entry(fleet, position))
        host.resources.put(f"{RUN}/proof", encode_proof(pair), fleet.id_of("n0"))
        length = len(fleet.referee.entries)
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        await _until_all_stop(fleet)
        assert len(fleet.referee.entries) == length and fleet.view.stopped is None

    _play(fleet, story)


def test_who_has_proof_does_not_take_part_again() -> None:
    fleet = Fleet(nodes=2)

    async def story() -> None:
        await _begin(fleet)
        await _show(fleet, "n0", _other_entry(fleet, fleet.view.at))
        await _until_all_stop(fleet)
        fleet.kill(COORDINATOR)
        fleet.start()
        for machine in fleet.machines.values():
            assert machine.task is not None
            with pytest.raises(ShoalError, match="SH-LOG-02"):
                await asyncio.wait_for(machine.task, 1.0)

    fleet.play(story)


class Slanderer(Liar):
    """Gives everybody what looks like proof."""

    refused = 0

    async def _tick(self) -> None:
        self._spawn(self._slander(), "slander")
        await super()._tick()

    async def _slander(self) -> None:
        while True:
            await self.host.clock.sleep(0.2)
            for peer in self._link.sources():
                for body in self._lies():
                    await self._give(peer, body)

    def _lies(self) -> list[bytes]:
        entries = list(self.keeping.log.read(self.invitation.run))
        if len(entries) < 2:
            return []
        last = read_link(entries[-1]).entry
        mine = make_link(self.identity, RUN, self.machine.view.head, last.term, 0, Stopped(reason="so"))
        stranger = Identity(b"stranger".ljust(32, b"."))
        theirs = make_link(stranger, RUN, self.machine.view.head, last.term, 0, Stopped(reason="so"))
        pairs = [(entries[-1], entries[-1]), (entries[-2], entries[-1]), (mine.encoded, theirs.encoded)]
        return [*(encode_proof(Equivocation(*pair)) for pair in pairs), b"\xc1", msgspec.msgpack.encode(1)]

    async def _give(self, peer: Any, body: bytes) -> None:
        try:
            await self.host.put(peer, f"{self.invitation.run}/proof", body, timeout_s=2.0)
        except Refused:
            self.refused += 1
        except ChannelClosed:
            return
        else:
            raise AssertionError("it was believed")


def test_slander_has_no_effect() -> None:
    fleet = Fleet(nodes=4)
    fleet.lies("n1", Slanderer)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(10)

    fleet.play(story)
    liar = fleet.machines["n1"].node
    assert isinstance(liar, Slanderer) and liar.refused > 50
    task = fleet.machines["n1"].task
    assert task is not None and (task.cancelled() or not task.done() or task.exception() is None)
