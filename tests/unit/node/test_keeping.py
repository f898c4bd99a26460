import random

import pytest
from runlog.small_log import COORDINATOR, NODES, RUN, STRANGER, make_claim, whole_story

from shoal.base.disk import SubDisk
from shoal.node.events import Outgoing
from shoal.node.keeping import Keeping
from shoal.replica.blobs import chunk_list
from shoal.wire.signed import sign
from shoal.worlds.simulated.disk import SimDisk

A = NODES[0]
STORY = whole_story()


class Died(Exception):
    pass


def _keeping(disk: SimDisk, dies_at: str = "") -> Keeping:
    def reached(point: str) -> None:
        if point == dies_at:
            raise Died

    return Keeping(SubDisk(disk, f"runs/{RUN}"), RUN, reached)


STATES = tuple(b"state %d" % sequence for sequence in range(3))


def _outgoing(sequence: int, states: tuple[bytes, ...] = STATES) -> Outgoing:
    claim = make_claim(STORY.view, A, sequence=sequence, local_after=chunk_list(states[sequence]).blob)
    return Outgoing(claim=claim, signed=sign(A, claim))


def _write_log(keeping: Keeping) -> None:
    for position, entry in enumerate(STORY.entries):
        keeping.log.append(RUN, position, entry)


def test_the_log_comes_back() -> None:
    disk = SimDisk()
    assert _keeping(disk).load_view(COORDINATOR.node).length == 0
    _write_log(_keeping(disk))
    assert _keeping(disk).load_view(COORDINATOR.node).head == STORY.view.head


@pytest.mark.parametrize("how", ["damaged record", "entry that does not follow"])
def test_a_damaged_copy_is_set_aside_and_begun_anew(how: str) -> None:
    disk = SimDisk()
    keeping = _keeping(disk)
    if how == "damaged record":
        _write_log(keeping)
        disk.write_at(f"runs/{RUN}/logs/{RUN}.log", 40, b"!")
    else:
        keeping.log.append(RUN, 0, STORY.entries[0])
        keeping.log.append(RUN, 1, STORY.entries[2])
    again = _keeping(disk)
    assert again.load_view(COORDINATOR.node).length == 0
    _write_log(again)
    assert _keeping(disk).load_view(COORDINATOR.node).head == STORY.view.head


def test_a_copy_of_another_coordinators_run_is_set_aside() -> None:
    """The ticket names a coordinator; a log that another one signed is not its run, whatever its number."""
    disk = SimDisk()
    _write_log(_keeping(disk))
    assert _keeping(disk).load_view(STRANGER.node).length == 0
    assert f"{RUN}.log.damaged" in disk.list(f"runs/{RUN}/logs")


def test_the_last_claim_comes_back_with_the_state_behind_it() -> None:
    disk = SimDisk()
    assert _keeping(disk).load_outgoing() is None
    for sequence in (0, 1, 2):
        _keeping(disk).save_outgoing(_outgoing(sequence), b"state %d" % sequence)
    assert _keeping(disk).load_outgoing() == (_outgoing(2), b"state 2")
    disk.write_at(f"runs/{RUN}/local-2", 3, b"!")
    assert _keeping(disk).load_outgoing() == (_outgoing(2), b""), "what rotted is not gone on from"
    locals_kept = [name for name in disk.list(f"runs/{RUN}") if name.startswith("local-")]
    assert locals_kept == ["local-2"]


@pytest.mark.parametrize(
    "point",
    ["write.before-sync", "write.after-rename", "write.durable", "node.before-outbox", "node.after-outbox"],
)
def test_a_crash_leaves_the_old_pair_or_the_new_one(point: str) -> None:
    seen = set()
    for seed in range(20):
        disk = SimDisk()
        _keeping(disk).save_outgoing(_outgoing(0), b"state 0")
        with pytest.raises(Died):
            _keeping(disk, point).save_outgoing(_outgoing(1), b"state 1")
        disk.crash(random.Random(seed))
        found = _keeping(disk).load_outgoing()
        assert found in ((_outgoing(0), b"state 0"), (_outgoing(1), b"state 1"))
        seen.add(found[1])
    if point == "node.after-outbox":
        assert seen == {b"state 1"}, "what may have left must come back"


@pytest.mark.parametrize("point", ["write.before-sync", "write.after-rename", "node.after-outbox"])
@pytest.mark.parametrize("states", [(b"first", b"second", b"no"), (b"a", b"bc", b"longer than both")])
def test_a_state_in_the_room_of_one_that_is_past_is_as_safe(states: tuple[bytes, ...], point: str) -> None:
    for seed in range(20):
        disk = SimDisk()
        for sequence in (0, 1):
            _keeping(disk).save_outgoing(_outgoing(sequence, states), states[sequence])
        assert disk.list(f"runs/{RUN}") == ["local-1", "outbox", "spare"]
        with pytest.raises(Died):
            _keeping(disk, point).save_outgoing(_outgoing(2, states), states[2])
        disk.crash(random.Random(seed))
        found = _keeping(disk).load_outgoing()
        assert found in [(_outgoing(number, states), states[number]) for number in (1, 2)]
        assert point != "node.after-outbox" or found[1] == states[2]


def test_a_finished_save_survives_any_crash() -> None:
    for seed in range(20):
        disk = SimDisk()
        _keeping(disk).save_outgoing(_outgoing(0), b"state 0")
        _keeping(disk).save_outgoing(_outgoing(1), b"state 1")
        disk.crash(random.Random(seed))
        assert _keeping(disk).load_outgoing() == (_outgoing(1), b"state 1")


def test_a_proof_is_kept_for_everyone_to_check() -> None:
    for seed in range(20):
        disk = SimDisk()
        assert _keeping(disk).load_proof() == b""
        _keeping(disk).save_proof(b"two entries")
        disk.crash(random.Random(seed))
        assert _keeping(disk).load_proof() == b"two entries"
    assert f"proof-{RUN[:12]}.msgpack" in disk.list(f"runs/{RUN}")


def test_where_coordinators_are_comes_back_unless_it_is_damaged() -> None:
    disk = SimDisk()
    assert _keeping(disk).load_coordinators() == ()
    _keeping(disk).save_coordinators(("a:1", "b:2"))
    assert _keeping(disk).load_coordinators() == ("a:1", "b:2")
    disk.write_at(f"runs/{RUN}/coordinators", 35, b"!")
    assert _keeping(disk).load_coordinators() == ()


def test_what_rotted_is_named(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    keeping = _keeping(disk)
    _write_log(keeping)
    keeping.save_outgoing(_outgoing(2), b"state 2")
    keeping.save_coordinators(("a:1",))
    for name, offset in ((f"logs/{RUN}.log", 40), ("local-2", 3), ("coordinators", 35)):
        disk.write_at(f"runs/{RUN}/{name}", offset, b"!")
    again = _keeping(disk)
    again.load_view(COORDINATOR.node)
    again.load_outgoing()
    again.load_coordinators()
    disk.write_at(f"runs/{RUN}/outbox", 0, b"!")
    assert _keeping(disk).load_outgoing() is None
    named = [vars(record)["file"] for record in caplog.records if record.message == "file_damaged"]
    assert named == ["log", "local-2", "coordinators", "outbox"]
