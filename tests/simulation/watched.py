"""A fleet in the simulated world, watched round by round: plans, seals, and how busy its devices were between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.apps.bench import calm
from shoal.apps.simulated_fleet import FleetWorld, Played, toy_recipe
from shoal.coordinator.machine import CoordinatorMachine
from shoal.lab.fleet import Fleet
from shoal.lab.library import fleet_from
from shoal.runlog.entries import Claim, Entry, Plan, Seal
from shoal.strategy.recipe import Recipe
from shoal.wire.signed import parse
from shoal.worlds.simulated.loop import SimLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A round when it was sealed."""

    at_s: float
    busy_s: float
    """Of all devices together, so far."""
    updates: int
    samples: int
    loss: float
    reason: str
    plans: tuple[Plan, ...]


@dataclass(slots=True)
class Watched:
    played: Played
    machine: CoordinatorMachine
    now: float
    rounds: list[Sealed] = field(default_factory=list)

    def utilisation(self, after_s: float, until_s: float, nodes: int) -> float:
        """How busy the devices were between two seals about these times."""
        inside = [one for one in self.rounds if after_s <= one.at_s <= until_s]
        first, last = inside[0], inside[-1]
        return (last.busy_s - first.busy_s) / (nodes * (last.at_s - first.at_s))


class _WatchedWorld(FleetWorld):
    rounds: list[Sealed]
    plans: list[Plan]

    def _appended(self, entry: Entry) -> None:
        super()._appended(entry)
        if isinstance(entry.body, Plan):
            self.plans.append(entry.body)
        if isinstance(entry.body, Seal):
            claims = [parse(item.claim.payload, Claim) for item in entry.body.accepted]
            self.rounds.append(
                Sealed(
                    at_s=self._loop.time(),
                    busy_s=sum(self._busy_s.values()),
                    updates=len(claims),
                    samples=sum(claim.samples for claim in claims if claim),
                    loss=sum(claim.loss for claim in claims if claim) / len(claims),
                    reason=entry.body.reason,
                    plans=tuple(self.plans),
                )
            )
            self.plans.clear()


def fleet_of(hosts: list[dict[str, Any]], **values: Any) -> Fleet:
    return fleet_from({"name": "watched", "step": "200 ms", "hosts": hosts, **values})


def recipe_for(seconds: float, *settings: str, preset: str = "adaptive", nodes: int = 1) -> Recipe:
    common = ("budget.rounds=null", f"budget.seconds={seconds}", f"membership.min_nodes={nodes}")
    return toy_recipe(preset, 1, [*common, "storage.archive=false", *settings])


def watch(fleet: Fleet, recipe: Recipe, *, params: int, most_s: float, seed: int = 0) -> Watched:
    loop = SimLoop(seed, event_budget=calm.NO_END)
    _WatchedWorld.rounds, _WatchedWorld.plans = [], []
    world = _WatchedWorld(loop, fleet, recipe, params, seed)
    played = loop.run(world.play(most_s, lambda: 0.0))
    machine = world._coordinator.runs[world._run].machine
    now = world._host_of_coordinator.clock.now()
    return Watched(played=played, machine=machine, now=now, rounds=world.rounds)
