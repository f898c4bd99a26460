"""The virtual loop: one order for one seed, kill -9, SIGSTOP, and no silent hang."""

import asyncio
import subprocess
import sys

import pytest

from shoal.worlds.simulated.loop import SimError, SimLoop, call_later

PROGRAM = """
import asyncio
from shoal.worlds.simulated.loop import SimLoop

def fingerprint(seed):
    loop = SimLoop(seed, event_budget=10_000)
    async def worker(name):
        for step in range(5):
            await asyncio.sleep(0.01 * loop.rng.random())
            loop.trace(name, step)
        return name
    async def main():
        tasks = {loop.spawn((name, 1), worker(name), name) for name in ("a", "b", "c", "d")}
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                loop.trace("done", task.result())
    loop.run(main())
    return loop.fingerprint()
"""


def _fingerprint(seed: int) -> str:
    scope: dict[str, object] = {}
    exec(compile(PROGRAM, "program", "exec"), scope)
    return scope["fingerprint"](seed)  # type: ignore[operator]


def test_one_seed_one_order() -> None:
    assert _fingerprint(1) == _fingerprint(1)
    assert len({_fingerprint(seed) for seed in range(6)}) == 6


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_the_same_in_another_process_with_another_hash_seed(hash_seed: str) -> None:
    command = [sys.executable, "-c", PROGRAM + "\nprint(fingerprint(7))"]
    done = subprocess.run(
        command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == _fingerprint(7)


def test_time_is_virtual_and_goes_forward() -> None:
    loop = SimLoop(1, event_budget=100)
    times = []

    async def main() -> None:
        for delay in (0, 1000, 0.5):
            await asyncio.sleep(delay)
            times.append(loop.time())

    loop.run(main())
    assert times == [0.0, 1000.0, 1000.5]


def test_a_killed_host_never_runs_again_not_even_a_finally() -> None:
    loop, seen = SimLoop(1, event_budget=1000), []

    async def victim() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("ran on")
        finally:
            seen.append("finally")

    async def main() -> None:
        loop.spawn(("v", 1), victim(), "victim")
        other = loop.spawn(("o", 1), asyncio.sleep(5, "other"), "other")
        await asyncio.sleep(0.5)
        loop.kill(("v", 1))
        await asyncio.sleep(3)
        assert seen == [] and await other == "other"

    loop.run(main())


def test_a_killed_hosts_children_die_with_it_and_its_next_incarnation_lives() -> None:
    loop, seen = SimLoop(1, event_budget=1000), []

    async def child(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(name)

    async def parent(name: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child(name))

    async def main() -> None:
        loop.spawn(("v", 1), parent("first"), "parent")
        await asyncio.sleep(2.5)
        loop.kill(("v", 1))
        loop.spawn(("v", 2), parent("second"), "parent")
        await asyncio.sleep(2.2)

    loop.run(main())
    assert seen[:4] == ["first", "first", "second", "second"]


def test_what_a_host_begins_in_the_moment_of_its_death_never_runs_and_is_no_failure() -> None:
    loop, seen = SimLoop(1, event_budget=1000), []

    async def child() -> None:
        seen.append("ran")

    async def victim() -> None:
        loop.kill(("v", 1))
        loop.create_task(child())
        loop.call_later(0.1, seen.append, "called")
        await asyncio.sleep(0.1)
        seen.append("ran on")

    async def main() -> None:
        loop.spawn(("v", 1), victim(), "victim")
        await asyncio.sleep(1)
        assert seen == [] and loop.failures == []

    loop.run(main())


def test_a_paused_host_runs_on_when_it_is_resumed() -> None:
    loop, seen = SimLoop(1, event_budget=1000), []

    async def ticker() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        loop.spawn(("p", 1), ticker(), "ticker")
        await asyncio.sleep(1.5)
        loop.pause(("p", 1))
        await asyncio.sleep(3)
        assert seen == [1.0]
        loop.resume(("p", 1))
        await asyncio.sleep(1.2)
        assert seen[1] == 4.5 and seen[2] == 5.5

    loop.run(main())


def test_a_host_that_is_killed_while_paused_never_runs_again_and_is_no_failure() -> None:
    loop, seen, news = SimLoop(1, event_budget=1000), [], asyncio.Event()

    async def victim() -> None:
        try:
            await news.wait()
        finally:
            seen.append("ran on")

    async def main() -> None:
        loop.spawn(("p", 1), victim(), "victim")
        await asyncio.sleep(1)
        loop.pause(("p", 1))
        news.set()
        await asyncio.sleep(1)  # By now nothing but the wake-up that is held back knows of the victim.
        loop.kill(("p", 1))
        await asyncio.sleep(1)
        assert seen == [] and loop.failures == []

    loop.run(main())


def test_a_deadlock_is_named() -> None:
    loop = SimLoop(1, event_budget=1000)

    async def main() -> None:
        loop.spawn(("h", 1), asyncio.Event().wait(), "for ever")
        await asyncio.Event().wait()

    with pytest.raises(SimError, match=r"deadlock.*h:for ever"):
        loop.run(main())


def test_a_livelock_is_named() -> None:
    loop = SimLoop(1, event_budget=1000)

    async def main() -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    with pytest.raises(SimError, match="livelock"):
        loop.run(main())


def test_what_the_world_does_outlives_its_sender() -> None:
    loop, seen = SimLoop(1, event_budget=1000), []

    async def sender() -> None:
        call_later(loop, 2, lambda: seen.append("arrived"))
        await asyncio.sleep(100)

    async def main() -> None:
        loop.spawn(("s", 1), sender(), "sender")
        await asyncio.sleep(1)
        loop.kill(("s", 1))
        await asyncio.sleep(2)

    loop.run(main())
    assert seen == ["arrived"]


def test_timers_of_one_moment_go_off_in_an_order_of_the_seeds() -> None:
    orders = set()
    for seed in range(20):
        loop, seen = SimLoop(seed, event_budget=1000), list[int]()

        async def main(loop: SimLoop = loop, seen: list[int] = seen) -> None:
            late = loop.call_later(2, seen.append, 9)
            for number in range(3):
                loop.call_at(1, seen.append, number)
            loop.call_later(1, seen.append, 8).cancel()
            await asyncio.sleep(3)
            assert not late.cancelled()

        loop.run(main())
        assert sorted(seen[:3]) == [0, 1, 2] and seen[3:] == [9]
        orders.add(tuple(seen))
    assert len(orders) > 1


def test_an_error_nobody_awaits_is_remembered() -> None:
    loop = SimLoop(1, event_budget=1000)

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.1)

    loop.run(main())
    assert isinstance(loop.failures[0]["exception"], ZeroDivisionError)


def test_within_a_host_order_is_first_come_first_served() -> None:
    for seed in range(10):
        loop, seen = SimLoop(seed, event_budget=1000), []

        async def host(loop: SimLoop = loop, seen: list[int] = seen) -> None:
            for number in range(5):
                loop.call_soon(seen.append, number)
            await asyncio.sleep(1)

        async def main(loop: SimLoop = loop) -> None:
            await asyncio.gather(*[loop.spawn((name, 1), host(), name) for name in ("x", "y")])

        loop.run(main())
        halves: dict[int, list[int]] = {}
        for number in seen:
            halves.setdefault(number, []).append(number)
        assert [len(found) for _, found in sorted(halves.items())] == [2] * 5
        firsts = [seen.index(number) for number in range(5)]
        assert firsts == sorted(firsts)
