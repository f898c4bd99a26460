"""The fleet as it is: coordinator and nodes in the simulated world, each node with a torch trainer of its own.

In flows a setup; out flows what came of it, with the bytes that the simulated transport counted. Invariant: every
preset is trained by the product's own services; machines are equal and links fast, so that what is measured is the
algorithm, not a fleet.
"""

from __future__ import annotations

import time

from shoal.apps.bench import calm
from shoal.apps.bench.converge.outcome import Outcome
from shoal.apps.bench.converge.setup import Say, Setup
from shoal.apps.bench.converge.twin import make_trainer, validate
from shoal.base.layout import Layout
from shoal.base.units import show_bytes
from shoal.codec.base import Codec
from shoal.runlog.entries import Claim, Entry, Seal
from shoal.runlog.pairs import matching
from shoal.runlog.view import RunView, Step, Update
from shoal.strategy.pieces import Strategy
from shoal.strategy.recipe import Recipe
from shoal.wire.signed import parse

SAY_EVERY_S = 5.0
STEP_S = 0.1
DISK_BYTES = 200_000_000
"""About how much all simulated disks together may hold of updates between two saved states."""


def train(setup: Setup, say: Say) -> Outcome:
    """Train it. Raises what a node raises: SH-TRAIN-01 and SH-CODEC-01 if it diverges."""
    fragments = setup.recipe.strategy.schedule.fragments
    layout = make_trainer(setup, fragments).layout
    fleet = calm.Fleet(
        recipe=with_snapshots(setup.recipe, layout.numel, setup.workers),
        manifest=setup.corpus.manifest,
        make_trainer=lambda: make_trainer(setup, fragments),
        computers=tuple(calm.Computer(name=f"n{number}") for number in range(setup.workers)),
        step_s=step_seconds(setup.recipe.strategy),
        seed=setup.seed,
    )
    played = calm.play(fleet, Teller(setup, say))
    return _outcome(setup, layout, played)


def with_snapshots(recipe: Recipe, numel: int, workers: int) -> Recipe:
    """Save the state so often that the updates after it fit into memory."""
    round_bytes = 2 * 4 * numel * workers * workers
    every = max(1, min(recipe.storage.snapshot_every, DISK_BYTES // round_bytes))
    storage = recipe.storage.model_copy(update={"snapshot_every": every})
    return recipe.model_copy(update={"storage": storage})


def step_seconds(strategy: Strategy) -> float:
    """A step's simulated duration: no round of the schedule may come near its deadline."""
    schedule = strategy.schedule
    longest = max(schedule.steps, schedule.steps_last or 1) + schedule.overlap
    return min(STEP_S, strategy.seal_rule().deadline_s / (4 * longest))


class Teller(calm.Observer):
    """Tells how far the run is, now and then."""

    def __init__(self, setup: Setup, say: Say) -> None:
        self._setup, self._say = setup, say
        self._told = time.monotonic()
        self._steps = self._sent_bytes = 0

    def appended(self, entry: Entry) -> None:
        if not isinstance(entry.body, Seal):
            return
        claims = [parse(item.claim.payload, Claim) for item in entry.body.accepted]
        sealed = [claim for claim in claims if claim is not None]
        self._steps += sum(claim.steps for claim in sealed)
        self._sent_bytes += sum(claim.size_bytes for claim in sealed)
        if time.monotonic() - self._told > SAY_EVERY_S and sealed:
            self._told = time.monotonic()
            loss = sum(claim.loss for claim in sealed) / len(sealed)
            steps = self._steps / self._setup.workers
            self._say(
                f"{self._setup.preset}: round {entry.body.round + 1}, step {steps:.0f} of {self._setup.steps}, "
                f"loss {loss:.3f}, {show_bytes(self._sent_bytes)} of updates"
            )


def _outcome(setup: Setup, layout: Layout, played: calm.Played) -> Outcome:
    updates = [update for step in played.view.path for update in step.updates]
    blobs = {update.claim.blob for update in updates}
    states = {saved.blob for saved in played.view.snapshots}
    moved = played.moved
    at_nodes = sum(
        size for (host, blob), size in moved.taken.items() if blob in blobs and host.startswith("n")
    )
    return Outcome(
        loss=validate(setup, played.state.params),
        params=layout.numel,
        steps=sum(update.claim.steps for update in updates) / setup.workers,
        tokens=sum(update.claim.tokens for update in updates),
        rounds=len(played.view.path),
        sent_bytes=sum(update.claim.size_bytes for update in updates) / setup.workers,
        received_bytes=at_nodes / setup.workers,
        wire_bytes=played.wire_bytes,
        wire_update_bytes=sum(moved.blobs[blob] for blob in blobs),
        wire_state_bytes=sum(moved.blobs[blob] for blob in states),
        stated_update_bytes=_stated_bytes(setup, layout, played.view),
    )


def _stated_bytes(setup: Setup, layout: Layout, view: RunView) -> int:
    """What the codec says that the updates take, for everyone who had to get them; where its size depends on the
    values, what it made of them."""
    codec_at = setup.recipe.strategy.fold_rules().codec_at
    return sum(
        receivers * stated(codec_at(update.place, update.codec), layout, update.claim)
        for step in view.path
        for update, receivers in _receivers(setup, view, step)
    )


def _receivers(setup: Setup, view: RunView, step: Step) -> list[tuple[Update, int]]:
    """How many had to get each update of a seal: everyone but its author; where nodes met in pairs, its partner and
    whoever vouched for it."""
    if not step.pairs:
        return [(update, max(1, setup.workers - 1)) for update in step.updates]
    met = matching(view.hashes[step.position], step.updates)
    partners = {meeting.own.claim.node: meeting.other for meeting in met}
    counts = []
    for update in step.updates:
        partner = partners[update.claim.node]
        counts.append((update, len({*update.holders, *([partner.claim.node] if partner else [])})))
    return counts


def stated(codec: Codec, layout: Layout, claim: Claim) -> int:
    size_of = getattr(codec, "size_bytes", None)
    if size_of is None:
        return claim.size_bytes
    return sum(int(size_of(layout.fragments[fragment].numel)) for fragment, _ in claim.base)
