import random

import blake3
import msgspec
import pytest
from runlog.proofs import PROOF, WORTHLESS
from runlog.small_log import COORDINATOR

from shoal.base.host import Refused
from shoal.base.ids import NodeId, RunId
from shoal.replica.blobs import CHUNK_BYTES, BlobStore, ChunkList, chunk_list
from shoal.replica.serving import (
    ARRIVALS_PER_SENDER,
    MAX_ARRIVALS,
    PutReply,
    ResourcesByRun,
    RunResources,
)
from shoal.runlog.entries import Receipt
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.wire.signed import open_signed
from shoal.worlds.simulated.disk import SimDisk

RUN, HOLDER, MEMBER = RunId("1" * 32), Identity(b"h" * 32), NodeId("m" * 40)
DATA = random.Random(3).randbytes(CHUNK_BYTES + 500)
CHUNKS = chunk_list(DATA)
ENTRIES = [b"genesis", b"joined"]


def _resources(quota_bytes: int = 1 << 40, max_blob_bytes: int = 1 << 40) -> tuple[RunResources, BlobStore]:
    blobs = BlobStore(SimDisk(), lambda _: None)
    resources = RunResources(
        run=RUN,
        identity=HOLDER,
        blobs=blobs,
        read_entry=lambda position: ENTRIES[position] if position < len(ENTRIES) else None,
        is_member=lambda node: node[0] == "m",
        evidence=Evidence(run=RUN, coordinator=lambda: (COORDINATOR.public,), keep=lambda _: None),
        quota_bytes=quota_bytes,
        max_blob_bytes=max_blob_bytes,
    )
    return resources, blobs


def _put(resources: RunResources, path: str, body: bytes, sender: NodeId = MEMBER) -> PutReply:
    return msgspec.msgpack.decode(resources.put(path, body, sender), type=PutReply)


def _begin(resources: RunResources, number: int, sender: NodeId = MEMBER) -> ChunkList:
    """Announce a blob of two chunks, and send the first."""
    chunks = ChunkList(CHUNK_BYTES + number, (CHUNKS.hashes[0], blake3.blake3(b"%d" % number).digest()))
    assert len(_put(resources, f"blobs/{chunks.blob}/chunks", chunks.encode(), sender).missing) == 2
    assert _put(resources, f"blobs/{chunks.blob}/0", DATA[:CHUNK_BYTES], sender) == PutReply(())
    return chunks


def _push(resources: RunResources, data: bytes) -> PutReply:
    chunks = chunk_list(data)
    reply = _put(resources, f"blobs/{chunks.blob}/chunks", chunks.encode())
    for index in reply.missing:
        reply = _put(resources, f"blobs/{chunks.blob}/{index}", data[slice(*chunks.span(index))])
    return reply


def test_a_pushed_blob_earns_a_receipt_when_it_is_whole() -> None:
    resources, blobs = _resources()
    announced = _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    assert announced == PutReply((0, 1))
    assert _put(resources, f"blobs/{CHUNKS.blob}/1", DATA[CHUNK_BYTES:]) == PutReply(())
    last = _put(resources, f"blobs/{CHUNKS.blob}/0", DATA[:CHUNK_BYTES])
    assert last.receipt is not None and blobs.get(CHUNKS.blob) == DATA
    receipt = open_signed(last.receipt, Receipt, HOLDER.public)
    assert receipt == Receipt(run=RUN, holder=HOLDER.node, blob=CHUNKS.blob, size_bytes=len(DATA))
    again = _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    assert again.receipt is not None, "a pusher whose reply was lost asks again"


def test_gets() -> None:
    resources, blobs = _resources()
    blobs.put(DATA)
    assert resources.get(f"blobs/{CHUNKS.blob}", 3, 9) == DATA[3:9]
    assert resources.get(f"blobs/{CHUNKS.blob}", 0, None) == DATA
    assert resources.get(f"blobs/{CHUNKS.blob}/chunks", 0, None) == CHUNKS.encode()
    assert resources.get("log/1", 0, None) == b"joined" and resources.get("log/1", 2, 4) == b"in"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "blobs",
        "blobs/",
        "blobs/../../key",
        f"blobs/{'0' * 64}",
        f"blobs/{'0' * 64}/chunks",
        f"blobs/{'0' * 64}/0",
        "log/9",
        "log/-1",
        "log/x",
        "log/٣",
        "log/" + "9" * 5000,
        "keys/node",
    ],
)
def test_what_is_not_offered_is_not_found(path: str) -> None:
    resources, blobs = _resources()
    blobs.put(DATA)
    assert resources.get(path, 0, None) is None


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("blobs/../x/chunks", b"", "no such resource"),
        (f"blobs/{CHUNKS.blob}", b"", "no such resource"),
        (f"blobs/{CHUNKS.blob}/chunks", b"noise", "chunk list"),
        (f"blobs/{'0' * 64}/chunks", CHUNKS.encode(), "chunk list"),
        (f"blobs/{CHUNKS.blob}/0", DATA[:CHUNK_BYTES], "not the announced one"),
        (f"blobs/{CHUNKS.blob}/{'9' * 50}", b"", "no such resource"),
        ("log/0", b"", "no such resource"),
    ],
)
def test_what_is_not_wanted_is_refused_in_words(path: str, body: bytes, why: str) -> None:
    resources, blobs = _resources()
    with pytest.raises(Refused, match=why):
        resources.put(path, body, MEMBER)
    assert blobs.used_bytes() == 0


def test_a_wrong_chunk_is_refused_and_the_right_one_taken() -> None:
    resources, _ = _resources()
    _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    with pytest.raises(Refused, match="not the announced one"):
        resources.put(f"blobs/{CHUNKS.blob}/0", b"wrong", MEMBER)
    assert _push(resources, DATA).receipt is not None


def test_strangers_store_nothing() -> None:
    resources, _ = _resources()
    with pytest.raises(Refused, match="not a member"):
        resources.put(f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode(), NodeId("s" * 40))


def test_nobody_stores_more_than_the_quota() -> None:
    resources, blobs = _resources(quota_bytes=len(DATA) + 10)
    assert _push(resources, DATA).receipt is not None
    with pytest.raises(Refused, match="quota"):
        _push(resources, b"x" * 11)
    assert _push(resources, b"x" * 10).receipt is not None
    assert blobs.used_bytes() == len(DATA) + 10


def test_a_full_store_still_vouches_for_what_it_holds() -> None:
    resources, _ = _resources(quota_bytes=len(DATA))
    assert _push(resources, DATA).receipt is not None
    assert _push(resources, DATA).receipt is not None, "the first reply may have been lost"


def test_an_announcement_that_is_never_kept_does_not_block_the_others_for_ever() -> None:
    resources, blobs = _resources(quota_bytes=len(DATA) + 100)
    _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    for round_number in range(20):
        blobs.prune([], round_number)
    assert _push(resources, b"honest" * 40).receipt is not None


def test_announcements_take_no_room_from_anybody() -> None:
    resources, _ = _resources(quota_bytes=30_000_000)
    liar = NodeId("m-liar")
    for number in range(1, 20):
        huge = ChunkList(20 * CHUNK_BYTES - number, CHUNKS.hashes[:1] * 20)
        _put(resources, f"blobs/{huge.blob}/chunks", huge.encode(), liar)
    assert _push(resources, DATA).receipt is not None


def test_a_blob_has_its_limit_which_may_change() -> None:
    resources, _ = _resources(max_blob_bytes=len(DATA) - 1)
    with pytest.raises(Refused, match="may have"):
        _push(resources, DATA)
    resources.max_blob_bytes = len(DATA)
    assert _push(resources, DATA).receipt is not None
    resources.max_blob_bytes = 1
    assert _push(resources, DATA).receipt is not None, "what is here is vouched for"


def test_the_quota_holds_for_every_chunk() -> None:
    resources, blobs = _resources(quota_bytes=len(DATA) + CHUNK_BYTES)
    _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    _begin(resources, 7)
    _put(resources, f"blobs/{CHUNKS.blob}/1", DATA[CHUNK_BYTES:])
    blobs.put(b"own things need room as well")
    with pytest.raises(Refused, match="quota"):
        _put(resources, f"blobs/{CHUNKS.blob}/0", DATA[:CHUNK_BYTES])
    assert blobs.used_bytes() <= len(DATA) + CHUNK_BYTES


def test_a_broken_off_push_goes_on_where_little_room_is_left() -> None:
    resources, _ = _resources(quota_bytes=len(DATA))
    _put(resources, f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode())
    _put(resources, f"blobs/{CHUNKS.blob}/0", DATA[:CHUNK_BYTES])
    assert _push(resources, DATA).receipt is not None


def test_a_sender_has_a_few_unfinished_blobs_the_oldest_is_dropped() -> None:
    resources, blobs = _resources()
    first = _begin(resources, 1)
    for number in range(2, ARRIVALS_PER_SENDER + 1):
        _begin(resources, number)
    assert _put(resources, f"blobs/{first.blob}/0", DATA[:CHUNK_BYTES]) == PutReply(()), "it moves"
    _begin(resources, 50)
    assert blobs.used_bytes() == ARRIVALS_PER_SENDER * CHUNK_BYTES
    assert blobs.arrived_bytes(first.blob) == CHUNK_BYTES


def test_many_senders_do_not_push_out_one() -> None:
    resources, blobs = _resources()
    honest, second = NodeId("m-honest"), NodeId("m-second")
    mine = _begin(resources, 1, honest)
    for number in range(2, 2 * MAX_ARRIVALS):
        _begin(resources, number, NodeId(f"m{number // ARRIVALS_PER_SENDER}"))
    assert blobs.used_bytes() == MAX_ARRIVALS * CHUNK_BYTES
    assert blobs.arrived_bytes(mine.blob) == CHUNK_BYTES
    # Nor does one who announces another's blob and lets it fall.
    _put(resources, f"blobs/{mine.blob}/chunks", mine.encode(), second)
    for number in range(1000, 1000 + ARRIVALS_PER_SENDER):
        _begin(resources, number, second)
    assert _put(resources, f"blobs/{mine.blob}/1", b"1", honest).receipt is not None


@pytest.mark.parametrize(("start", "stop"), [(-3, None), (-3, 2), (4, 2)])
def test_what_is_no_range_is_not_found(start: int, stop: int | None) -> None:
    resources, blobs = _resources()
    blobs.put(DATA)
    for path in (f"blobs/{CHUNKS.blob}", f"blobs/{CHUNKS.blob}/chunks", "log/0"):
        assert resources.get(path, start, stop) is None


def test_an_empty_blob_does_no_harm() -> None:
    resources, _ = _resources()
    nothing = chunk_list(b"")
    reply = _put(resources, f"blobs/{nothing.blob}/chunks", nothing.encode())
    assert reply.missing == ()


def test_runs_do_not_see_each_other() -> None:
    by_run = ResourcesByRun()
    by_run.runs[RUN], blobs = _resources()
    blobs.put(DATA)
    assert by_run.get(f"{RUN}/blobs/{CHUNKS.blob}", 0, 2) == DATA[:2]
    assert by_run.get(f"{'2' * 32}/blobs/{CHUNKS.blob}", 0, 2) is None and by_run.get("", 0, 2) is None
    with pytest.raises(Refused, match="no such run"):
        by_run.put(f"{'2' * 32}/blobs/{CHUNKS.blob}/chunks", CHUNKS.encode(), MEMBER)


def test_a_proof_is_taken_from_anybody_and_given_to_anybody() -> None:
    resources, _ = _resources()
    assert resources.get("proof", 0, 100) == b"", "nothing yet"
    assert resources.put("proof", PROOF, NodeId("stranger")) == b""
    assert resources.put("proof", PROOF, MEMBER) == b"", "as often as they like"
    assert resources.get("proof", 0, None) == PROOF and resources.get("proof", 2, 5) == PROOF[2:5]


@pytest.mark.parametrize("why", sorted(WORTHLESS))
def test_what_proves_nothing_is_refused_and_forgotten(why: str) -> None:
    resources, _ = _resources()
    with pytest.raises(Refused, match="proves nothing"):
        resources.put("proof", WORTHLESS[why], MEMBER)
    assert resources.get("proof", 0, None) == b""
    assert _push(resources, DATA).receipt is not None, "all else goes on"


def test_a_run_whose_coordinator_lies_takes_no_more_blobs() -> None:
    resources, blobs = _resources()
    blobs.put(DATA)
    resources.put("proof", PROOF, MEMBER)
    with pytest.raises(Refused, match="SH-LOG-02"):
        resources.put(f"blobs/{CHUNKS.blob}/chunks", CHUNKS.encode(), MEMBER)
    assert resources.get(f"blobs/{CHUNKS.blob}", 0, 2) == DATA[:2], "what is here can still be had"


# --- in ranges, unannounced --------------------------------------------------------------------------------


def test_ranges_of_a_small_blob_earn_a_receipt_when_it_is_whole() -> None:
    resources, blobs = _resources()
    path, half = f"blobs/{CHUNKS.blob}/at", len(DATA) // 2
    assert _put(resources, f"{path}/{half}/{len(DATA)}", DATA[half:]) == PutReply(())
    last = _put(resources, f"{path}/0/{len(DATA)}", DATA[:half])
    assert last.receipt is not None and blobs.get(CHUNKS.blob) == DATA
    assert _put(resources, f"{path}/0/{len(DATA)}", b"again").receipt is not None


@pytest.mark.parametrize(
    ("place", "body", "sender", "why"),
    [
        (f"0/{len(DATA)}", bytes(len(DATA)), MEMBER, "not the blob"),
        (f"5/{len(DATA)}", DATA, MEMBER, "no range"),
        (f"0/{len(DATA)}", DATA, NodeId("s" * 40), "not a member"),
        (f"0/{1 << 30}", DATA, MEMBER, "may have"),
        ("0", DATA, MEMBER, "no such resource"),
        ("-1/9", DATA, MEMBER, "no such resource"),
    ],
)
def test_ranges_that_are_not_the_blob_are_refused(place: str, body: bytes, sender: NodeId, why: str) -> None:
    resources, blobs = _resources(max_blob_bytes=1 << 22)
    with pytest.raises(Refused, match=why):
        resources.put(f"blobs/{CHUNKS.blob}/at/{place}", body, sender)
    assert not blobs.has(CHUNKS.blob)


def test_ranges_go_no_further_than_the_quota() -> None:
    resources, blobs = _resources(quota_bytes=len(DATA) - 1)
    with pytest.raises(Refused, match="no room"):
        resources.put(f"blobs/{CHUNKS.blob}/at/0/{len(DATA)}", DATA, MEMBER)
    assert not blobs.has(CHUNKS.blob)
