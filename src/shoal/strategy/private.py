"""What a recipe's privacy comes to on its data, and with which other pieces it cannot be promised. Pure.

In flow the recipe and the number of training samples; out flow a `Guarantee`, or why there is none, in words.
Invariant: everybody computes the same guarantee from the log's first entry; noise and budget are the same for all
nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from shoal.base.errors import ShoalError
from shoal.privacy.accounting import Mechanism, epsilon_of, noise_within, releases_within
from shoal.privacy.spec import PrivacySpec

if TYPE_CHECKING:
    from shoal.strategy.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What each node promises, and what it takes. A release is a private step, or a private update."""

    spec: PrivacySpec
    mechanism: Mechanism
    releases: int | None
    """So many fit into the budget of epsilon; None without one."""
    parts: int
    """Of the training data, where samples are protected."""
    part_items: int
    batch: int
    """Samples that a step takes on average."""

    @property
    def noise(self) -> float:
        return self.mechanism.noise

    def epsilon(self, spent: int) -> float:
        """What so many releases of one node cost."""
        return epsilon_of(self.mechanism, spent, self.spec.delta)

    def exhausted(self, spent: int, wanted: int) -> str:
        """Why a node that has spent so many releases may not make so many more; "" if it may."""
        if self.releases is None or spent + wanted <= self.releases:
            return ""
        return (
            f"its privacy budget is spent: epsilon {self.epsilon(spent):.3g} of {self.spec.epsilon:g} "
            f"(delta {self.spec.delta:g})"
        )


def guarantee_of(recipe: Recipe, train_items: int) -> Guarantee | None:
    """The guarantee of a run on so many samples; None where its recipe asks for none. Raises SH-PRIVACY-01 if it cannot
    be had, SH-PRIVACY-02 without `dp-accounting`."""
    if recipe.privacy is None:
        return None
    parts = recipe.privacy.parts or recipe.membership.min_nodes
    wanted = 1 if recipe.privacy.unit == "update" else most_steps(recipe)
    spare = 0 if recipe.privacy.unit == "update" else recipe.strategy.schedule.overlap
    planned = (recipe.budget.rounds or 0) * wanted + spare
    return _guarantee(recipe.privacy, parts, recipe.inner.batch_size, planned, wanted, train_items)


@lru_cache(maxsize=64)
def _guarantee(
    spec: PrivacySpec, parts: int, batch: int, planned: int, wanted: int, train_items: int
) -> Guarantee:
    part_items = train_items // parts
    rate = 1.0
    if spec.unit == "sample":
        _check_part(spec, parts, part_items, batch)
        rate = batch / part_items
    if spec.noise is not None:
        noise = spec.noise
    else:
        assert spec.epsilon is not None
        noise = noise_within(rate, planned, spec.epsilon, spec.delta)
    mechanism = Mechanism(noise, rate)
    releases = None if spec.epsilon is None else releases_within(mechanism, spec.epsilon, spec.delta)
    if releases is not None and releases < wanted:
        raise ShoalError(
            "SH-PRIVACY-01",
            f"one round of {wanted} release{'s' if wanted > 1 else ''} costs epsilon "
            f"{epsilon_of(mechanism, wanted, spec.delta):.3g}, more than the {spec.epsilon:g} of the budget",
            "raise privacy.noise or privacy.epsilon, or lower strategy.schedule.steps",
        )
    return Guarantee(
        spec=spec, mechanism=mechanism, releases=releases, parts=parts, part_items=part_items, batch=batch
    )


def _check_part(spec: PrivacySpec, parts: int, part_items: int, batch: int) -> None:
    if part_items < batch:
        raise ShoalError(
            "SH-PRIVACY-01",
            f"each of {parts} parts of the training data has {part_items} samples, fewer than a batch of {batch}",
            "lower inner.batch_size or privacy.parts, or add data",
        )
    if spec.delta * part_items >= 1:
        raise ShoalError(
            "SH-PRIVACY-01",
            f"with {part_items} samples in a part, delta {spec.delta:g} would allow for giving one of them away",
            f"set privacy.delta well below {1 / part_items:.2g}",
        )


def most_steps(recipe: Recipe) -> int:
    """The steps of the longest round that the schedule has."""
    schedule = recipe.strategy.schedule
    return max(schedule.steps, schedule.steps_last or 1)


def unsound_privacy(recipe: Recipe) -> str:
    """Why this recipe's privacy cannot be promised with its other pieces; "" if it can."""
    spec, strategy = recipe.privacy, recipe.strategy
    if spec is None:
        return ""
    if recipe.audit.on:
        return (
            "with audit.rate above 0: noise is drawn in secret, so that nobody can run a claim again and come to the "
            "same update, and auditors would be shown the private state; set audit.rate to 0"
        )
    if strategy.region is not None:
        return "with strategy.region: a hub claims what others trained, and could not count what each of them spent"
    if recipe.masking.on:
        return "with masking.members: members of masked groups add no noise, so that nobody would keep the promise"
    if spec.noise is None and recipe.budget.rounds is None:
        return (
            f"epsilon {spec.epsilon:g} without noise needs budget.rounds: the noise is found from the number of "
            "releases that are planned; give budget.rounds, or privacy.noise"
        )
    if spec.unit == "update":
        return "parts has a meaning with unit sample only" if spec.parts else ""
    if recipe.inner.kind == "own" or recipe.model.kind == "own" or recipe.data.source == "own":
        return (
            "unit sample with the participants' own program: the run cannot clip its gradients sample by sample; use "
            "unit update"
        )
    if recipe.inner.compile:
        return (
            "unit sample with inner.compile: gradients by sample are not compiled; set inner.compile to false"
        )
    if strategy.planner.kind == "aware" or recipe.membership.scaling == "batch":
        return (
            "unit sample with planner aware or membership.scaling batch: the chance of a sample to be drawn must be "
            "the same in every step, and so the batch; set planner.kind to naive and scaling to none or rate"
        )
    return ""
