"""A preset of two levels in the simulated world: the workers in two regions, each with a hub in the parent run.

In flows a setup whose strategy has regions; out flows what came of it. Invariant: bytes of both levels are counted and
shared among the workers: a worker sends its own updates, and its part of what its hub sends up and brings down; it
receives what arrives at any machine, hubs and their coordinators too, by its part.
"""

from __future__ import annotations

from shoal.apps.bench import country
from shoal.apps.bench.converge.engines import REGIONS
from shoal.apps.bench.converge.outcome import Outcome
from shoal.apps.bench.converge.setup import Say, Setup
from shoal.apps.bench.converge.simulated import Teller, stated, step_seconds, with_snapshots
from shoal.apps.bench.converge.twin import make_trainer, validate
from shoal.base.ids import BlobId
from shoal.base.layout import Layout
from shoal.codec.base import Codec
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe


def train(setup: Setup, say: Say) -> Outcome:
    """Train it. Raises what a node raises if it diverges."""
    strategy = setup.recipe.strategy
    assert strategy.region is not None
    fragments = strategy.schedule.fragments
    layout = make_trainer(setup, fragments).layout
    sizes = tuple(len(range(number, setup.workers, REGIONS)) for number in range(REGIONS))
    played = country.play(
        country.Country(
            recipe=_for_hubs(with_snapshots(setup.recipe, layout.numel, setup.workers), max(sizes)),
            manifest=setup.corpus.manifest,
            make_trainer=lambda: make_trainer(setup, fragments),
            regions=sizes,
            step_s=step_seconds(strategy.region),
            seed=setup.seed,
        ),
        Teller(setup, say),
    )
    return _outcome(setup, layout, played)


def _for_hubs(recipe: Recipe, members: int) -> Recipe:
    """The parent run waits for the hubs, not for the workers, and counts a round of the largest region whole."""
    strategy = recipe.strategy
    assert strategy.region is not None
    most, round_steps = (
        strategy.schedule.steps + strategy.schedule.overlap,
        members * strategy.region.schedule.steps,
    )
    if round_steps > most:
        schedule = strategy.schedule.model_copy(update={"steps": round_steps, "overlap": round_steps})
        strategy = strategy.model_copy(update={"schedule": schedule})
    membership = recipe.membership.model_copy(update={"min_nodes": REGIONS})
    return recipe.model_copy(update={"membership": membership, "strategy": strategy})


def _outcome(setup: Setup, layout: Layout, played: country.PlayedCountry) -> Outcome:
    claims = [update.claim for step in played.view.path for update in step.updates]
    up = {claim.blob: claim.size_bytes for claim in claims}
    near = {u.claim.blob: u.claim.size_bytes for v in played.regions for s in v.path for u in s.updates}
    down = {s.graft.blob: s.graft.size_bytes for v in played.regions for s in v.path if s.graft}
    states = {saved.blob for view in (played.view, *played.regions) for saved in view.snapshots}
    moved, batch = played.moved.blobs, setup.inner.batch_size
    made = {**near, **up, **down}
    return Outcome(
        loss=validate(setup, played.state.params),
        params=layout.numel,
        steps=sum(claim.samples for claim in claims) / batch / setup.workers,
        tokens=sum(claim.tokens for claim in claims),
        rounds=len(played.view.path),
        sent_bytes=sum(made.values()) / setup.workers,
        received_bytes=sum(moved[blob] for blob in made) / setup.workers,
        far_bytes=sum(size + moved[blob] for blob, size in up.items()) / setup.workers,
        wire_bytes=played.wire_bytes,
        wire_update_bytes=sum(moved[blob] for blob in made),
        wire_state_bytes=sum(moved[blob] for blob in states - {*made}),
        stated_update_bytes=_stated_bytes(setup, layout, played, down),
    )


def _stated_bytes(
    setup: Setup, layout: Layout, played: country.PlayedCountry, down: dict[BlobId, int]
) -> int:
    """What the codecs say that everything takes, for everyone who had to get it: a hub's update for every other hub, a
    member's for every other member and its hub's coordinator, the parent's news for every member."""
    strategy = setup.recipe.strategy
    assert strategy.region is not None
    total = _of(played.view, layout, strategy.fold_rules().codec, REGIONS - 1)
    for view in played.regions:
        members = len(view.members)
        total += _of(view, layout, strategy.region.fold_rules().codec, members)
        total += members * sum(down[step.graft.blob] for step in view.path if step.graft)
    return total


def _of(view: RunView, layout: Layout, codec: Codec, receivers: int) -> int:
    updates = [update for step in view.path for update in step.updates]
    return receivers * sum(stated(codec, layout, update.claim) for update in updates)
