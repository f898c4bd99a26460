"""Hostile frames against a live coordinator and a live node: no crash, no growth, and honest work goes on."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from shoal.wire.ticket import read_ticket

from .fleet import START_S, Fleet, tiny
from .hostile_frames import as_members, to_peers
from .processes import Child

GROWTH_BYTES = 48 << 20
"""What a process may grow by: its log and its allocator's slack; a leak of a hundred bytes a frame would be seen."""


def _resident(child: Child) -> int:
    return int(psutil.Process(child.process.pid).memory_info().rss)


def _peer_port(fleet: Fleet, name: str) -> int:
    """Where the node takes connections."""
    listening = [
        one.laddr.port
        for one in psutil.Process(fleet.nodes[name].process.pid).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    return int(listening[0])


def _storm(fleet: Fleet, frames: int, requests: int, seed: int) -> int:
    """Frames as members of the run and requests at both blob ports, at the same time; how many left."""
    ticket, coordinator = read_ticket(fleet.ticket), fleet.coordinator_id()
    url = f"wss://127.0.0.1:{fleet.control_port}/control"
    ports = [(fleet.blob_port, coordinator), (_peer_port(fleet, "steady"), fleet.node_id("steady"))]
    with ThreadPoolExecutor(len(ports)) as pool:
        asked = [
            pool.submit(to_peers, "127.0.0.1", port, node, fleet.run, count=requests // 2, seed=seed + port)
            for port, node in ports
        ]
        sent = asyncio.run(
            as_members(url, coordinator, fleet.run, ticket.token, count=frames, members=16, seed=seed)
        )
        return sent + sum(future.result() for future in asked)


def _survive(folder: Path, frames: int, requests: int) -> tuple[int, dict[str, int]]:
    with Fleet(folder) as fleet:
        fleet.serve(tiny(strategy={"seal": {"kind": "all-or-deadline", "deadline_s": 2.0}}))
        fleet.join("steady", "--max-up", "20kB/s")
        fleet.contributes("steady")
        assert fleet.coordinator is not None
        both = {"coordinator": fleet.coordinator, "node": fleet.nodes["steady"]}
        sent = _storm(fleet, frames // 10, requests // 10, 1)  # So that buffers and caches are there.
        before = {name: _resident(child) for name, child in both.items()}
        position = fleet.length()
        sent += _storm(fleet, frames - frames // 10, requests - requests // 10, 2)
        fleet.contributes("steady", after=position, within_s=START_S)
        growth = {name: _resident(child) - before[name] for name, child in both.items()}
        fleet.contributes("steady", after=fleet.length())
        assert all(child.alive for child in both.values())
        said = fleet.coordinator.err.read_text() + fleet.nodes["steady"].said()
        assert "Traceback" not in said, said[-4000:]
        return sent, growth


def test_a_thousand_hostile_frames(tmp_path: Path) -> None:
    sent, growth = _survive(tmp_path, 800, 200)
    assert sent >= 1_000 and all(bytes_ < GROWTH_BYTES for bytes_ in growth.values()), growth


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_hostile_frames(tmp_path: Path) -> None:
    sent, growth = _survive(tmp_path, 80_000, 20_000)
    print(f"{sent} frames; growth {growth}")
    assert sent >= 100_000 and all(bytes_ < GROWTH_BYTES for bytes_ in growth.values()), growth
