from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from shoal.base.host import Host
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.loop import run

from .worlds import Shelf, client


def test_it_is_a_host_with_clock_disk_and_randomness(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path) as real:
            host: Host = real
            first = host.clock.now()
            await host.clock.sleep(-1.0)
            assert host.clock.now() >= first
            assert abs(host.clock.wall_ms() - time.time() * 1000) < 10_000
            assert host.disk.list("") == []
            assert 0.0 <= host.random.random() < 1.0
            host.reached("anything")

    run(main())


def test_work_leaves_the_loop_free(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path) as host:
            released = threading.Event()
            job = asyncio.create_task(host.work(lambda: (released.wait(10), threading.current_thread().name)))
            await asyncio.sleep(0)
            released.set()  # only possible if the loop was not blocked
            done, name = await job
            assert done and name.startswith("shoal-work")

    run(main())


def test_a_host_without_ports_takes_no_inbound_connections(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path) as host:
            assert await host.offer(Shelf()) == ""

            async def serve(channel: object) -> None:
                return None

            assert await host.listen(serve) == ""

    run(main())


def test_the_advertised_name_is_what_peers_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path, peer_port=0, advertise="shoal.example") as host:
            assert (await host.offer(Shelf())).startswith("shoal.example:")
        async with client(tmp_path, peer_port=0, bind="0.0.0.0") as host:
            address = await host.offer(Shelf())
            assert not address.startswith("0.0.0.0")

    run(main())


def test_closing_leaves_no_threads(tmp_path: Path) -> None:
    async def main() -> None:
        async with RealHost(Identity.generate(), FileDisk(tmp_path), peer_port=0) as host:
            await host.offer(Shelf())
            await host.work(lambda: None)

    before = set(threading.enumerate())
    run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread.name
