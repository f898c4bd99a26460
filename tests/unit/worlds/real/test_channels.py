from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect as open_websocket

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel
from shoal.wire.identity import Identity
from shoal.worlds.real.addresses import split_address
from shoal.worlds.real.channels import ChannelLimits
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.limits import Limits
from shoal.worlds.real.loop import run
from shoal.worlds.real.tls import client_context

from .worlds import TIMEOUT_S, client

SMALL = ChannelLimits(frame_bytes=1000)


async def echo(channel: Channel) -> None:
    channel.admit()
    while True:
        await channel.send(await channel.recv())


@asynccontextmanager
async def listening(
    folder: Path, serve: Callable[[Channel], Coroutine[Any, Any, None]] = echo, **options: Any
) -> AsyncIterator[tuple[RealHost, str]]:
    async with RealHost(Identity.generate(), FileDisk(folder), control_port=0, **options) as host:
        yield host, await host.listen(serve)


@pytest.mark.parametrize("runner", [run, asyncio.run])
def test_frames_both_ways_on_either_loop(
    tmp_path: Path, runner: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def main() -> None:
        async with listening(tmp_path / "s") as (server, address), client(tmp_path / "c") as host:
            channel = await host.connect(address, server.identity.node)
            for frame in (b"", b"x", bytes(100_000)):
                await channel.send(frame)
                assert await channel.recv() == frame
            await channel.close()
            with pytest.raises(ChannelClosed):
                await channel.recv()
            with pytest.raises(ChannelClosed):
                await channel.send(b"x")
            assert host.meter.total().control_up_bytes == 100_001
            assert server.meter.total().control_down_bytes == 100_001

    runner(main())


@pytest.mark.parametrize("runner", [run, asyncio.run])
def test_another_node_is_refused(tmp_path: Path, runner: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def main() -> None:
        async with listening(tmp_path / "s") as (server, address), client(tmp_path / "c") as host:
            with pytest.raises(ShoalError, match=server.identity.node) as caught:
                await host.connect(address, Identity.generate().node)
            assert caught.value.code == "SH-JOIN-07"

    runner(main())


def test_nobody_there_is_a_closed_channel(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path) as host:
            for address in ("127.0.0.1:1", "nonsense"):
                with pytest.raises(ChannelClosed):
                    await host.connect(address, Identity.generate().node)

    run(main())


def test_a_server_that_does_not_speak_is_a_closed_channel(tmp_path: Path) -> None:
    async def main() -> None:
        limits = ChannelLimits(open_s=0.3)
        writers: list[asyncio.StreamWriter] = []
        mute = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
        async with mute, client(tmp_path, channel_limits=limits) as host:
            address = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
            with pytest.raises(ChannelClosed):
                await host.connect(address, Identity.generate().node)
            for writer in writers:
                writer.close()

    run(main())


def test_a_frame_that_is_too_large_closes_the_channel_on_either_side(tmp_path: Path) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def serve(channel: Channel) -> None:
        try:
            await echo(channel)
        except ChannelClosed as closed:
            ended.put_nowait(str(closed))

    async def main() -> None:
        async with (
            listening(tmp_path / "s", serve, channel_limits=SMALL) as (server, address),
            client(tmp_path / "c") as generous,
            client(tmp_path / "d", channel_limits=SMALL) as careful,
            asyncio.timeout(TIMEOUT_S),
        ):
            loud = await generous.connect(address, server.identity.node)
            await loud.send(bytes(1001))
            with pytest.raises(ChannelClosed):
                await loud.recv()
            await ended.get()
            other = await careful.connect(address, server.identity.node)
            await other.send(bytes(1000))
            assert await other.recv() == bytes(1000)
            with pytest.raises(ChannelClosed, match="1001"):
                await other.send(bytes(1001))

    run(main())


def test_garbage_and_text_do_not_harm_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            listening(tmp_path / "s") as (server, address),
            client(tmp_path / "c") as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            steady = await host.connect(address, server.identity.node)
            await _garbage(address, None)
            await _garbage(address, client_context(server.identity.node))
            async with open_websocket(f"wss://{address}/", ssl=client_context(server.identity.node)) as text:
                await text.send("not a frame")
                await text.wait_closed()
            await steady.send(b"still here")
            assert await steady.recv() == b"still here"

    run(main())


async def _garbage(address: str, context: ssl.SSLContext | None) -> None:
    host, port = split_address(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(bytes(range(256)) * 64)
    try:
        while await reader.read(1000):
            pass
    except OSError:
        pass
    writer.close()


def test_a_peer_that_does_not_read_ends_the_send(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def deaf(channel: Channel) -> None:
        await release.wait()

    async def main() -> None:
        limits = ChannelLimits(send_s=0.3, queue_frames=2)
        async with (
            listening(tmp_path / "s", deaf, channel_limits=limits) as (server, address),
            client(tmp_path / "c", channel_limits=limits) as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            channel = await host.connect(address, server.identity.node)
            with pytest.raises(ChannelClosed):
                for _ in range(1000):
                    await channel.send(bytes(1 << 20))
            release.set()

    run(main())


def test_silence_is_ended_by_pings(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def main() -> None:
        limits = ChannelLimits(ping_s=0.1, pong_s=0.1, close_s=0.1)
        async with (
            listening(tmp_path / "s") as (server, address),
            client(tmp_path / "c", channel_limits=limits) as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            relay = await asyncio.start_server(
                lambda reader, writer: _relay(address, reader, writer, release), "127.0.0.1", 0
            )
            async with relay:
                through = f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"
                channel = await host.connect(through, server.identity.node)
                release.set()  # from now on the relay swallows everything
                with pytest.raises(ChannelClosed):
                    await channel.recv()

    run(main())


async def _relay(
    address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
) -> None:
    far_reader, far_writer = await asyncio.open_connection(*split_address(address))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not cut.is_set():
                sink.write(data)

    async with asyncio.TaskGroup() as group:
        group.create_task(pump(reader, far_writer))
        group.create_task(pump(far_reader, writer))
    writer.close()
    far_writer.close()


def test_a_failing_handler_and_too_many_channels(tmp_path: Path) -> None:
    async def fragile(channel: Channel) -> None:
        if await channel.recv() == b"break":
            raise RuntimeError("handler broke")
        await echo(channel)

    async def main() -> None:
        limits = ChannelLimits(channels=1)
        async with (
            listening(tmp_path / "s", fragile, channel_limits=limits) as (server, address),
            client(tmp_path / "c") as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            broken = await host.connect(address, server.identity.node)
            second = await host.connect(address, server.identity.node)
            with pytest.raises(ChannelClosed, match="too many"):
                await second.recv()
            await broken.send(b"break")
            with pytest.raises(ChannelClosed):
                await broken.recv()
            third = await host.connect(address, server.identity.node)
            await third.send(b"hello")
            await third.send(b"echo")
            assert await third.recv() == b"echo"

    run(main())


def test_one_address_holds_few_channels(tmp_path: Path) -> None:
    async def main() -> None:
        limits = ChannelLimits(channels_per_remote=2)
        async with (
            listening(tmp_path / "s", bind="0.0.0.0", advertise="127.0.0.1", channel_limits=limits) as (
                server,
                address,
            ),
            client(tmp_path / "c") as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            held = [await host.connect(address, server.identity.node) for _ in range(2)]
            crowded = await host.connect(address, server.identity.node)
            with pytest.raises(ChannelClosed, match="too many"):
                await crowded.recv()
            context = client_context(server.identity.node)
            async with open_websocket(f"wss://{address}/", ssl=context, local_addr=("127.0.0.3", 0)) as other:
                await other.send(b"from another address")
                assert await other.recv() == b"from another address"
            await held[0].close()
            await held[1].send(b"x")
            assert await held[1].recv() == b"x"

    run(main())


def test_a_stranger_may_send_small_frames_only(tmp_path: Path) -> None:
    limits = ChannelLimits(hello_bytes=100)

    async def careful(channel: Channel) -> None:
        if await channel.recv() == b"it is me":
            channel.admit()
            await channel.send(b"welcome")
        await channel.send(await channel.recv())

    async def main() -> None:
        async with (
            listening(tmp_path / "s", careful, channel_limits=limits) as (server, address),
            client(tmp_path / "c") as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            stranger = await host.connect(address, server.identity.node)
            await stranger.send(bytes(101))
            with pytest.raises(ChannelClosed):
                await stranger.recv()
            member = await host.connect(address, server.identity.node)
            await member.send(b"it is me")
            assert await member.recv() == b"welcome"
            await member.send(bytes(1 << 20))
            assert len(await member.recv()) == 1 << 20, "the limit that a server sends by is the wide one"

    run(main())


@pytest.mark.parametrize("runner", [run, asyncio.run])
def test_closing_twice_from_both_sides_and_being_cancelled_is_quiet(
    tmp_path: Path, runner: Callable[[Coroutine[Any, Any, None]], None], capfd: pytest.CaptureFixture[str]
) -> None:
    async def polite(channel: Channel) -> None:
        await channel.recv()
        await channel.close()

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with (
            listening(tmp_path / "s", polite) as (server, address),
            client(tmp_path / "c") as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            for _ in range(3):
                channel = await host.connect(address, server.identity.node)
                listener = asyncio.ensure_future(channel.recv())
                await channel.send(b"goodbye")
                first = asyncio.ensure_future(channel.close())
                await asyncio.sleep(0)
                first.cancel()
                with pytest.raises(ChannelClosed):
                    await listener
                await asyncio.gather(channel.close(), channel.close())
                with pytest.raises(ChannelClosed):
                    await channel.send(b"x")
                with pytest.raises(ChannelClosed):
                    await channel.recv()
        assert complaints == []

    runner(main())
    assert capfd.readouterr().err == ""


def test_a_host_closes_the_channels_it_opened(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def serve(channel: Channel) -> None:
        with pytest.raises(ChannelClosed):
            await channel.recv()
        ended.set()

    async def main() -> None:
        async with listening(tmp_path / "s", serve) as (server, address), asyncio.timeout(TIMEOUT_S):
            async with client(tmp_path / "c") as host:
                forgotten = await host.connect(address, server.identity.node)
            await ended.wait()
            with pytest.raises(ChannelClosed):
                await forgotten.send(b"x")

    run(main())


def test_control_counts_against_the_month(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            listening(tmp_path / "s") as (server, address),
            client(tmp_path / "c", limits=Limits(month_bytes=1000)) as host,
            asyncio.timeout(TIMEOUT_S),
        ):
            channel = await host.connect(address, server.identity.node)
            await channel.send(bytes(400))
            assert len(await channel.recv()) == 400
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await channel.send(bytes(400))
            await channel.send(bytes(150))
            assert len(await channel.recv()) == 150, "what has come is delivered, and counted beyond the cap"
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await channel.send(b"x")

    async def after() -> None:
        async with (
            listening(tmp_path / "t") as (server, address),
            client(tmp_path / "c", limits=Limits(month_bytes=1000)) as host,
        ):
            channel = await host.connect(address, server.identity.node)
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await channel.send(b"x")

    run(main())
    run(after())


def test_a_taken_port_is_explained(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path / "s") as (_, address):
            port = split_address(address)[1]
            async with client(tmp_path / "c", control_port=port) as rival:
                with pytest.raises(ShoalError, match=str(port)) as caught:
                    await rival.listen(echo)
                assert caught.value.code == "SH-SERVE-01"
        async with client(tmp_path / "d", control_port=0, bind="192.0.2.1") as stranger:
            with pytest.raises(ShoalError) as caught:
                await stranger.listen(echo)
            assert caught.value.code == "SH-SERVE-02"

    run(main())
