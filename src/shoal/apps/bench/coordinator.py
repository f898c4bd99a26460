"""`shoal bench coordinator`: one coordinator on one core, thousands of beating nodes, dozens of open dashboards.

In flow the size of the crowd; out flow how long the API takes and what was dropped. Invariant: everything goes over
loopback between processes; the crowd and those who ask run on another core than the coordinator.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import connect

from shoal.apps.bench.standing import Standing, standing
from shoal.apps.progress import lasting

ASK_EVERY_S, OPEN_S = 0.05, 120.0


@dataclass(slots=True)
class _Seen:
    """What the dashboards and the askers saw."""

    frames: int = 0
    pictures: int = 0
    """First whole pictures."""
    anew: int = 0
    """Whole pictures beyond each socket's first: frames were dropped before them."""
    closed: int = 0
    answers_ms: list[float] = field(default_factory=list)
    failed: int = 0


def measure(
    nodes: int, sockets: int, seconds: float, runs: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """p50 and p99 of the API in ms, with `nodes` nodes that beat every 5 s and so many open dashboards."""
    with standing(nodes, 5.0, say, runs=runs, pinned=True) as coordinator:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[-1]})
        say(f"{sockets} dashboards open; measuring for {seconds:g} s")
        before = _cpu_s(coordinator.pid)
        began = time.monotonic()
        seen = asyncio.run(_watch(coordinator, sockets, seconds))
        busy = (_cpu_s(coordinator.pid) - before) / (time.monotonic() - began)
        counts = coordinator.dismiss()
        os.sched_setaffinity(0, set(cores))
    ranked = sorted(seen.answers_ms)
    return {
        "nodes": nodes,
        "runs": runs,
        "sockets": sockets,
        "seconds": seconds,
        "heartbeats_per_s": counts["sent"] / seconds,
        "requests": len(ranked),
        "p50_ms": _quantile(ranked, 0.50),
        "p99_ms": _quantile(ranked, 0.99),
        "max_ms": ranked[-1],
        "frames": seen.frames,
        "heartbeats_sent": counts["sent"],
        "heartbeats_unanswered": counts["sent"] - counts["answered"],
        "channels_lost": counts["lost"],
        "frames_dropped": seen.anew,
        "sockets_closed": seen.closed,
        "requests_failed": seen.failed,
        "dropped": counts["sent"]
        - counts["answered"]
        + counts["lost"]
        + seen.anew
        + seen.closed
        + seen.failed,
        "coordinator_cpu": busy,
        "load_average": os.getloadavg()[0],
    }


async def _watch(coordinator: Standing, sockets: int, seconds: float) -> _Seen:
    seen = _Seen()
    tasks = [
        asyncio.ensure_future(_dashboard(coordinator, coordinator.runs[n % len(coordinator.runs)], seen))
        for n in range(sockets)
    ]
    # Whoever has just opened a page is sent everything: what is measured is what comes after.
    async with asyncio.timeout(OPEN_S):
        while seen.pictures < sockets and not any(task.done() for task in tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)
    with lasting(seconds):
        await _ask(coordinator, seconds, seen)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def _dashboard(coordinator: Standing, run: str, seen: _Seen) -> None:
    """An open page: it reads whatever comes."""
    address = coordinator.address.replace("http", "ws") + "/api/v1/live"
    async with connect(address, max_size=1 << 26, compression=None, proxy=None) as socket:
        await socket.send(json.dumps({"token": coordinator.token, "run": run}))
        first = True
        async for frame in socket:
            head = frame[:24] if isinstance(frame, str) else frame[:24].decode()
            seen.frames += 1
            if '"full"' in head:
                seen.anew += not first
                seen.pictures += first
                first = False
        seen.closed += 1


async def _ask(coordinator: Standing, seconds: float, seen: _Seen) -> None:
    """Somebody asks for one thing after the other, as pages and scripts do."""
    run = coordinator.runs[0]
    paths = (
        "/runs",
        f"/runs/{run}",
        f"/runs/{run}/rounds",
        f"/runs/{run}/events?limit=100",
        f"/runs/{run}/checkpoints",
    )
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    end, number = time.monotonic() + seconds, 0
    async with httpx.AsyncClient(
        base_url=coordinator.address, headers=headers, timeout=30.0, trust_env=False
    ) as http:
        while time.monotonic() < end:
            began = time.perf_counter()
            answer = await http.get("/api/v1" + paths[number % len(paths)])
            seen.answers_ms.append((time.perf_counter() - began) * 1000)
            seen.failed += not answer.is_success
            number += 1
            await asyncio.sleep(ASK_EVERY_S)


def _quantile(ranked: list[float], part: float) -> float:
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]


def _cpu_s(pid: int) -> float:
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
