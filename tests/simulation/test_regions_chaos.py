"""Hubs, their coordinators, members and the parent die again and again; what the parent takes is what was trained."""

import asyncio
import random

import pytest

from .regions import Country
from .test_regions import Ledger, _check_updates, _one_state_everywhere, _recipe

TROUBLE_S = 30.0


@pytest.mark.parametrize("seed", range(4))
def test_regions_survive_kills(seed: int) -> None:
    rng = random.Random(f"regions/{seed}")
    country = Country({"a": 3, "b": 2}, seed=seed, recipe=_recipe())
    ledger = Ledger(country, "a")
    killed: list[str] = []

    async def trouble() -> None:
        """A hub dies with its coordinator or alone; a member or the parent, alone."""
        while country.loop.time() < TROUBLE_S:
            await asyncio.sleep(rng.uniform(0.5, 4))
            victims = rng.choice(
                [["seat-a", "hub-a"], ["hub-a"], ["seat-b", "hub-b"], ["a0"], ["b1"], ["parent"]]
            )
            country.kill(*victims)
            killed.extend(victims)
            await asyncio.sleep(rng.uniform(0.2, 3))
            country.start(*victims)

    async def story() -> None:
        watch = asyncio.create_task(ledger.watch())
        country.start()
        await country.until(lambda: all(country.hub(r).region.run for r in "ab"), 60, "the regions")
        await trouble()
        await country.rounds(6)
        watch.cancel()

    country.play(story)
    assert len(killed) >= 5
    assert _check_updates(country, "a", ledger) >= 2
    for region in "ab":
        _one_state_everywhere(country, region)
