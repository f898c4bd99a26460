from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Peer
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.limits import MONTH_FILE, Bucket, Limits, MonthlyCap
from shoal.worlds.real.loop import run
from shoal.worlds.real.peers import ASK_BYTES

from .worlds import TIMEOUT_S, Shelf, client, serving

NOVEMBER_MS = 1_795_000_000_000
DECEMBER_MS = NOVEMBER_MS + 30 * 86_400_000


def test_a_bucket_keeps_its_rate_whatever_the_sizes() -> None:
    now = [0.0]
    bucket = Bucket(1000.0, lambda: now[0])
    for size in (10, 500, 40, 2450):
        now[0] += bucket.reserve(size)
    assert now[0] == pytest.approx(3.0, abs=0.1)


def test_a_bucket_does_not_hoard_while_idle_and_takes_back() -> None:
    now = [0.0]
    bucket = Bucket(10_000.0, lambda: now[0])
    now[0] = 100.0
    assert bucket.reserve(10_000) > 0.85
    before = bucket.reserve(0)
    bucket.reserve(5000)
    bucket.give_back(5000)
    assert bucket.reserve(0) == pytest.approx(before)


def test_the_month_is_counted_across_restarts_and_begins_anew(tmp_path: Path) -> None:
    wall = [NOVEMBER_MS]
    cap = MonthlyCap(FileDisk(tmp_path), 1000, lambda: wall[0])
    cap.take(600)
    cap.close()
    cap = MonthlyCap(FileDisk(tmp_path), 1000, lambda: wall[0])
    assert cap.used_bytes() == 600
    with pytest.raises(ShoalError, match="SH-JOIN-10"):
        cap.take(401)
    cap.take(400)
    wall[0] = DECEMBER_MS
    assert cap.used_bytes() == 0
    cap.take(1000)


def test_a_crash_never_hands_out_bytes_twice(tmp_path: Path) -> None:
    first = MonthlyCap(FileDisk(tmp_path), 6400, lambda: NOVEMBER_MS)
    moved = 0
    for _ in range(37):
        first.take(33)
        moved += 33
    second = MonthlyCap(FileDisk(tmp_path), 6400, lambda: NOVEMBER_MS)  # no close: the process died
    assert moved <= second.used_bytes() <= moved + 100


def test_a_garbled_count_is_not_a_new_allowance(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.write(MONTH_FILE, b"{garbage")
    with pytest.raises(ShoalError, match="SH-JOIN-10"):
        MonthlyCap(disk, 1000, lambda: NOVEMBER_MS).take(1)


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_real_transfer_keeps_the_rate(tmp_path: Path, side: str) -> None:
    size, rate = 600_000, 500_000.0
    server_limits = Limits(max_up_bytes_s=rate) if side == "up" else None
    client_limits = Limits(max_down_bytes_s=rate) if side == "down" else None

    async def main() -> float:
        shelf = Shelf(blob=bytes(size))
        async with (
            serving(tmp_path / "s", shelf, limits=server_limits) as (_, peer),
            client(tmp_path / "c", limits=client_limits) as host,
        ):
            await host.get(peer, "blob", 0, 1, timeout_s=TIMEOUT_S)
            began = time.monotonic()
            await host.get(peer, "blob", 0, size, timeout_s=TIMEOUT_S)
            return size / (time.monotonic() - began)

    assert run(main()) == pytest.approx(rate, rel=0.15)


def test_a_transfer_that_the_rate_does_not_allow_in_time_fails_early(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(blob=bytes(1_000_000))
        async with (
            serving(tmp_path / "s", shelf) as (_, peer),
            client(tmp_path / "c", limits=Limits(max_down_bytes_s=10_000)) as host,
        ):
            with pytest.raises(ChannelClosed):
                await host.get(peer, "blob", 0, 1_000_000, timeout_s=0.5)

    run(main())


def test_pieces_are_charged_to_the_month_request_by_request(tmp_path: Path) -> None:
    async def main() -> None:
        blob = bytes(4 * ASK_BYTES)
        async with (
            serving(tmp_path / "s", Shelf(blob=blob)) as (_, peer),
            client(tmp_path / "c", limits=Limits(month_bytes=3 * ASK_BYTES)) as host,
        ):
            given: list[int] = []

            def take(start: int, data: Buffer) -> bool:
                given.append(start)
                return len(data) == ASK_BYTES

            cuts = [number * ASK_BYTES for number in range(5)]
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await host.get_pieces(peer, "blob", cuts, take, timeout_s=TIMEOUT_S)
            assert given == cuts[:2], "the fourth is asked for before the third is read"

    run(main())


def test_a_spent_month_ends_gets_puts_and_serving(tmp_path: Path) -> None:
    async def main() -> None:
        shelf = Shelf(blob=bytes(10_000))
        spent = Limits(month_bytes=5000)
        async with (
            serving(tmp_path / "s", shelf) as (_, free),
            serving(tmp_path / "s2", shelf, limits=spent) as (_, stingy),
            client(tmp_path / "c", limits=spent) as poor,
            client(tmp_path / "d") as rich,
        ):
            assert len(await poor.get(free, "blob", 8000, 12_000, timeout_s=TIMEOUT_S)) == 2000
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await poor.get(free, "blob", 0, 4000, timeout_s=TIMEOUT_S)
            with pytest.raises(ShoalError, match="SH-JOIN-10"):
                await poor.put(free, "x", bytes(4000), timeout_s=TIMEOUT_S)
            assert await poor.put(free, "x", bytes(3000), timeout_s=TIMEOUT_S) == b"thanks for x"
            await _serves_until_spent(rich, stingy)

    async def _serves_until_spent(rich: RealHost, stingy: Peer) -> None:
        assert len(await rich.get(stingy, "blob", 0, 4000, timeout_s=TIMEOUT_S)) == 4000
        with pytest.raises(ChannelClosed, match="SH-JOIN-10"):
            await rich.get(stingy, "blob", 0, 4000, timeout_s=TIMEOUT_S)

    run(main())
