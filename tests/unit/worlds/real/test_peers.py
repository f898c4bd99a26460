from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from pathlib import Path

import pytest

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Host, Peer, Refused
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.http1 import render_get, render_put
from shoal.worlds.real.loop import run
from shoal.worlds.real.peer_proof import NONCE_PATH, make_proof
from shoal.worlds.real.peer_session import MESSAGE_BYTES, ServerLimits
from shoal.worlds.real.peers import ASK_BYTES

from .worlds import TIMEOUT_S, Shelf, client, raw_tls, read_all, serving

BLOB = bytes(range(256)) * 40


def test_ranges(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            as_protocol: Host = host

            async def get(start: int, stop: int) -> bytes:
                return await as_protocol.get(peer, "blob", start, stop, timeout_s=TIMEOUT_S)

            assert await get(0, len(BLOB)) == BLOB
            assert await get(300, 700) == BLOB[300:700]
            assert await get(len(BLOB) - 5, len(BLOB) + 100) == BLOB[-5:]
            assert await get(len(BLOB) + 1, len(BLOB) + 2) == b""
            assert await get(7, 7) == b""

    run(main())


def test_a_range_longer_than_a_message_comes_whole(tmp_path: Path) -> None:
    blob = bytes(MESSAGE_BYTES) + b"tail"

    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=blob)) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            assert await host.get(peer, "blob", 0, 2 * MESSAGE_BYTES, timeout_s=TIMEOUT_S) == blob

    run(main())


async def _pieces(host: Host, peer: Peer, cuts: list[int]) -> tuple[int, list[tuple[int, bytes]]]:
    """Everything that `get_pieces` gives, and what it says came."""
    given: list[tuple[int, bytes]] = []

    def take(start: int, data: Buffer) -> bool:
        given.append((start, bytes(data)))
        return True

    return await host.get_pieces(peer, "blob", cuts, take, timeout_s=TIMEOUT_S), given


def test_pieces_are_cut_as_was_asked_over_however_many_requests(tmp_path: Path) -> None:
    blob = bytes(range(256)) * (3 * ASK_BYTES // 256) + b"tail"
    ends = [0, 5, ASK_BYTES // 2, ASK_BYTES + 1, ASK_BYTES + 2, 2 * ASK_BYTES + 7, len(blob)]

    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=blob)) as (server, peer),
            client(tmp_path / "c") as host,
        ):
            came, given = await _pieces(host, peer, ends)
            assert came == len(blob)
            assert given == [(a, blob[a:b]) for a, b in itertools.pairwise(ends)]
            assert await _pieces(host, peer, [3, 9]) == (6, [(3, blob[3:9])])
            assert server.inbound_connections() == 1, "the line was good for another request"

    run(main())


@pytest.mark.parametrize(
    ("cuts", "given"),
    [
        ([10_000, 10_100, 10_300, 10_400], [(10_000, 100), (10_100, 140)]),
        ([10_000, 10_240, 10_400, 10_500], [(10_000, 240), (10_240, 0)]),
        ([10_300, 10_400], [(10_300, 0)]),
    ],
)
def test_the_piece_that_the_end_cuts_short_is_the_last(
    tmp_path: Path, cuts: list[int], given: list[tuple[int, int]]
) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            came, found = await _pieces(host, peer, cuts)
            assert found == [(start, BLOB[start : start + size]) for start, size in given]
            assert came == sum(size for _, size in given)
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]

    run(main())


def test_whoever_takes_pieces_may_stop_or_fail_in_the_middle(tmp_path: Path) -> None:
    blob = bytes(4 * ASK_BYTES)
    cuts = list(range(0, len(blob) + 1, ASK_BYTES // 2))
    given: list[int] = []

    def stop(start: int, data: Buffer) -> bool:
        given.append(start)
        return len(given) < 3

    def fail(start: int, data: Buffer) -> bool:
        raise ShoalError("SH-DISK-01", "no room", "make some")

    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=blob)) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            assert await host.get_pieces(peer, "blob", cuts, stop, timeout_s=TIMEOUT_S) == cuts[3]
            assert given == cuts[:3]
            with pytest.raises(ShoalError, match="SH-DISK-01"):
                await host.get_pieces(peer, "blob", cuts, fail, timeout_s=TIMEOUT_S)
            with pytest.raises(ChannelClosed, match="404"):
                await host.get_pieces(peer, "no/such", cuts, stop, timeout_s=TIMEOUT_S)
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == blob[:4]

    run(main())


def test_many_at_once_share_few_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (server, peer),
            client(tmp_path / "c") as host,
        ):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(host.get(peer, "blob", i, i + 100, timeout_s=TIMEOUT_S))
                    for i in range(64)
                ]
            assert [task.result() for task in tasks] == [BLOB[i : i + 100] for i in range(64)]
            assert server.inbound_connections() <= 4
            assert host.meter.total().bulk_down_bytes > 6400
            # The server's threads count what they sent after it has gone: the last may still be about to.
            async with asyncio.timeout(TIMEOUT_S):
                while server.meter.total().bulk_up_bytes < host.meter.total().bulk_down_bytes:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert server.meter.total().bulk_up_bytes == host.meter.total().bulk_down_bytes
            assert server.meter.total().control_up_bytes == 0

    run(main())


def test_missing_refused_broken_and_then_still_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            for _ in range(2):
                with pytest.raises(ChannelClosed, match="404"):
                    await host.get(peer, "no/such", 0, 10, timeout_s=TIMEOUT_S)
                with pytest.raises(Refused, match=r"^no room for it$"):
                    await host.put(peer, "unwanted", b"x", timeout_s=TIMEOUT_S)
                with pytest.raises(ChannelClosed, match="500"):
                    await host.get(peer, "broken", 0, 10, timeout_s=TIMEOUT_S)
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]

    run(main())


def test_what_is_known_to_go_wrong_is_told_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "s", Shelf()) as (_, peer), client(tmp_path / "c") as host:
            with pytest.raises(ChannelClosed, match="500"):
                await host.get(peer, "full", 0, 10, timeout_s=TIMEOUT_S)

    run(main())
    (told,) = [record for record in caplog.records if record.msg == "peer_request_failed"]
    assert told.exc_info is None and vars(told)["code"] == "SH-DISK-01"


def test_a_put_arrives_with_its_sender(tmp_path: Path) -> None:
    sender = Identity.generate()
    shelf = Shelf()

    async def main() -> None:
        async with (
            serving(tmp_path / "s", shelf) as (_, peer),
            client(tmp_path / "c", sender) as host,
        ):
            assert await host.put(peer, "a b/ü", b"12345", timeout_s=TIMEOUT_S) == "thanks for a b/ü".encode()
            await host.put(peer, "empty", b"", timeout_s=TIMEOUT_S)
            await host.put(peer, "large", bytes(MESSAGE_BYTES), timeout_s=TIMEOUT_S)
            with pytest.raises(ChannelClosed):
                await host.put(peer, "too-large", bytes(MESSAGE_BYTES + 1), timeout_s=TIMEOUT_S)

    run(main())
    assert shelf.puts == [
        ("a b/ü", 5, sender.node),
        ("empty", 0, sender.node),
        ("large", MESSAGE_BYTES, sender.node),
    ]


def _raw_put(peer: Peer, proof_for: Identity, server: NodeId, *, stale: bool, claim: Identity) -> bytes:
    """A put whose proof is made as told; everything the server says after the nonce."""
    with raw_tls(peer) as sock:
        sock.sendall(render_get("h", NONCE_PATH, 0, 32))
        reply = b""
        while b"\r\n\r\n" not in reply or len(reply.partition(b"\r\n\r\n")[2]) < 32:
            reply += sock.recv(4096)
        nonce = bytes(32) if stale else reply.partition(b"\r\n\r\n")[2]
        proof = make_proof(proof_for, server, nonce)
        proof["Shoal-Key"] = claim.public.hex()
        proof["Connection"] = "close"
        sock.sendall(render_put("h", "x", 1, proof) + b"x")
        return read_all(sock)


def test_forged_senders_are_refused(tmp_path: Path) -> None:
    shelf = Shelf()
    me, victim, other = Identity.generate(), Identity.generate(), Identity.generate()

    async def main() -> None:
        async with serving(tmp_path / "s", shelf) as (_, peer):

            def attempts() -> list[bytes]:
                return [
                    _raw_put(peer, me, peer.node, stale=False, claim=victim),  # another's key
                    _raw_put(peer, me, other.node, stale=False, claim=me),  # a proof for another server
                    _raw_put(peer, me, peer.node, stale=True, claim=me),  # a proof of another connection
                    _raw_put(peer, me, peer.node, stale=False, claim=me),
                ]

            *forged, honest = await asyncio.to_thread(attempts)
            assert all(reply.startswith(b"HTTP/1.1 401") for reply in forged)
            assert honest.startswith(b"HTTP/1.1 200")

    run(main())
    assert shelf.puts == [("x", 1, me.node)]


def test_the_wrong_node_is_not_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (server, peer),
            client(tmp_path / "c") as host,
        ):
            impostor = Peer(node=Identity.generate().node, address=peer.address)
            with pytest.raises(ChannelClosed, match="expected node"):
                await host.get(impostor, "blob", 0, 1, timeout_s=TIMEOUT_S)
            with pytest.raises(ChannelClosed, match="expected node"):
                await host.put(impostor, "secret", b"s", timeout_s=TIMEOUT_S)
            assert server.meter.total().bulk_down_bytes == 0

    run(main())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\x16\x03nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/3\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /blob HTTP/1.1\r\nRange: bytes=9-1\r\n\r\n", b"400"),
        (b"GET /blob HTTP/1.1\r\nRange: bytes=0-99999999\r\nConnection: close\r\n\r\n", b"413"),
        (b"GET /blob HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
        (b"DELETE /blob HTTP/1.1\r\n\r\n", b"405"),
        (b"PUT /x HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"PUT /x HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b"401"),
    ],
)
def test_whatever_is_sent_the_server_answers_and_lives(tmp_path: Path, sent: bytes, answer: bytes) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB)) as (_, peer),
            client(tmp_path / "c") as host,
        ):

            def speak() -> bytes:
                with raw_tls(peer) as sock:
                    sock.sendall(sent)
                    return read_all(sock)

            assert (await asyncio.to_thread(speak)).startswith(b"HTTP/1.1 " + answer)
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]

    run(main())


def test_a_slow_peer_is_dropped_without_harm_to_others(tmp_path: Path) -> None:
    limits = ServerLimits(head_s=0.3, handshake_s=0.3, idle_s=0.3)

    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB), server_limits=limits) as (_, peer),
            client(tmp_path / "c") as host,
        ):
            before_tls = socket.create_connection(peer.address.split(":"), timeout=TIMEOUT_S)  # type: ignore[arg-type]
            in_head = await asyncio.to_thread(raw_tls, peer)
            in_head.sendall(b"GET /blob HT")
            silent = await asyncio.to_thread(raw_tls, peer)
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]
            with before_tls, in_head, silent:
                assert await asyncio.to_thread(before_tls.recv, 1) == b""
                await asyncio.to_thread(read_all, in_head)
                assert await asyncio.to_thread(read_all, silent) == b""

    run(main())


def test_a_full_house_lets_the_idle_go_and_refuses_when_all_are_busy(tmp_path: Path) -> None:
    release = threading.Event()
    busy = threading.Semaphore(0)

    class Slow(Shelf):
        def get(self, path: str, start: int, stop: int | None) -> bytes | None:
            if path == "slow":
                busy.release()
                release.wait(TIMEOUT_S)
            return super().get("blob", start, stop)

    async def patiently(host: RealHost, peer: Peer) -> bytes:
        """Asks again until the server has seen that the idle ones are idle, which takes it a moment."""
        while True:
            with contextlib.suppress(ChannelClosed):
                return await host.get(peer, "slow", 0, 4, timeout_s=TIMEOUT_S)

    async def main() -> None:
        limits = ServerLimits(connections=2)
        async with (
            serving(tmp_path / "s", Slow(blob=BLOB), server_limits=limits) as (_, peer),
            client(tmp_path / "c") as first,
            client(tmp_path / "d") as second,
        ):
            idle = [await asyncio.to_thread(raw_tls, peer) for _ in range(2)]
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(patiently(first, peer)) for _ in range(2)]
                for _ in waiting:
                    await asyncio.to_thread(busy.acquire, timeout=TIMEOUT_S)
                with pytest.raises(ChannelClosed):
                    await second.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S)
                release.set()
            assert [task.result() for task in waiting] == [BLOB[:4]] * 2
            for sock in idle:
                assert await asyncio.to_thread(read_all, sock) == b""
                sock.close()
            assert await second.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]

    run(main())


@pytest.mark.parametrize("begun", [b"", b"GET /blob HT"], ids=["in the handshake", "in the head"])
def test_hellos_that_never_end_keep_nobody_out(tmp_path: Path, begun: bytes) -> None:
    limits = ServerLimits(connections=4)

    async def main() -> None:
        async with (
            serving(tmp_path / "s", Shelf(blob=BLOB), server_limits=limits) as (_, peer),
            client(tmp_path / "c") as host,
            client(tmp_path / "d") as other,
        ):
            assert await other.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]
            held = []
            for _ in range(8):
                if begun:
                    held.append(await asyncio.to_thread(raw_tls, peer))
                    held[-1].sendall(begun)
                else:
                    held.append(socket.create_connection(peer.address.split(":"), timeout=TIMEOUT_S))  # type: ignore[arg-type]
                    held[-1].sendall(b"\x16\x03\x01\x02\x00")
            assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]
            assert await other.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]
            for sock in held:
                sock.close()

    run(main())


def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    identity = Identity.generate()

    async def main() -> None:
        async with client(tmp_path / "c") as host:
            async with serving(tmp_path / "s", Shelf(blob=BLOB), identity) as (_, peer):
                await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S)
            with pytest.raises(ChannelClosed):
                await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S)
            port = int(peer.address.rpartition(":")[2])
            async with RealHost(identity, FileDisk(tmp_path / "s"), peer_port=port) as again:
                await again.offer(Shelf(blob=BLOB))
                assert await host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S) == BLOB[:4]

    run(main())


def test_deadlines_and_cancelling_end_a_request(tmp_path: Path) -> None:
    """A server that accepts and never says a word."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            peer = Peer(node=Identity.generate().node, address=f"127.0.0.1:{mute.getsockname()[1]}")
            async with client(tmp_path / "c") as host:
                with pytest.raises(ChannelClosed):
                    await host.get(peer, "blob", 0, 4, timeout_s=0.2)
                request = asyncio.create_task(host.get(peer, "blob", 0, 4, timeout_s=TIMEOUT_S))
                accepted, _ = await asyncio.to_thread(mute.accept)
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
                accepted.close()

    run(main())


@pytest.mark.parametrize("address", ["", "nonsense", "host:", ":80", "host:99999", "127.0.0.1:1"])
def test_an_address_that_does_not_answer_is_a_closed_channel(tmp_path: Path, address: str) -> None:
    async def main() -> None:
        async with client(tmp_path) as host:
            with pytest.raises(ChannelClosed):
                await host.get(
                    Peer(node=Identity.generate().node, address=address), "x", 0, 1, timeout_s=TIMEOUT_S
                )

    run(main())


def test_a_taken_port_and_a_foreign_address_are_explained(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "s", Shelf()) as (_, peer):
            port = int(peer.address.rpartition(":")[2])
            async with client(tmp_path / "c", peer_port=port) as rival:
                with pytest.raises(ShoalError, match=str(port)) as caught:
                    await rival.offer(Shelf())
                assert caught.value.code == "SH-SERVE-01"
        async with client(tmp_path / "d", peer_port=0, bind="192.0.2.1") as stranger:
            with pytest.raises(ShoalError, match=r"192\.0\.2\.1") as caught:
                await stranger.offer(Shelf())
            assert caught.value.code == "SH-SERVE-02"

    run(main())
