"""A node as its volunteer sees it: what will run, and how it goes.

In flow the run's genesis and the node at work; out flow lines of text. Invariant: nothing here changes anything;
the same values give the same lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.apps.printable import printable
from shoal.base.units import show_bytes
from shoal.credit.spec import show_credits
from shoal.credit.words import policy
from shoal.data.manifest import Manifest
from shoal.node.service import NodeService
from shoal.runlog.entries import Genesis
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.worlds.real.meter import Traffic

MAX_LINE = 1000
_WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """What is worth showing of a node at one moment."""

    round: int
    doing: str
    connected: bool
    loss: float | None
    validation: float | None
    tokens_per_s: float
    up_bytes: int
    down_bytes: int
    standing: str
    """ "in", or why not."""
    earned_micro: int = 0
    """By the coordinator's last receipt."""
    epsilon: float | None = None
    """What its privacy has cost so far, by its own ledger; None where the run promises none."""


def data_bytes(manifest: Manifest) -> int:
    """About how much data a node downloads before it can train."""
    items = manifest.train_items + manifest.validation_items
    size = manifest.context if manifest.kind == "tokens" else math.prod(manifest.sample_shape)
    return items * size * _WIDTHS[manifest.dtype]


def show_count(count: int) -> str:
    """1234567 -> "1.2M"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def describe(recipe: Recipe, genesis: Genesis, run: str, here: str, limits: str, code: str) -> list[str]:
    """What taking part in this run means, for the volunteer to read before it starts."""
    strategy = recipe.strategy
    return [
        f"run {recipe.name!r} ({run[:12]})",
        f"  trains   {recipe.model.kind}, {show_count(genesis.layout.numel)} parameters,"
        f" on {show_bytes(data_bytes(genesis.manifest))} of data",
        f"  shares   an update every {strategy.schedule.steps} steps ({strategy.preset},"
        f" {strategy.codec.kind} codec)",
        f"  pays     {policy(recipe.credit)}",
        *([f"  privacy  {_privacy(recipe)}"] if recipe.privacy else []),
        f"  here     {here}",
        f"  limits   {limits}",
        f"  code     {code}",
    ]


def _privacy(recipe: Recipe) -> str:
    spec = recipe.privacy
    assert spec is not None
    most = f"at most epsilon {spec.epsilon:g}" if spec.epsilon is not None else "epsilon counted"
    return f"{most} (delta {spec.delta:g}) by {spec.unit}; this node counts it and stops when it is spent"


def observe(service: NodeService, traffic: Traffic) -> NodeNow:
    """The node as it is now."""
    machine, learner = service.machine, service.learner
    progress = learner.progress if learner else None
    return NodeNow(
        round=machine.view.round,
        doing=machine.doing,
        connected=machine.connected,
        loss=(progress.last_loss or None) if progress and progress.steps else None,
        validation=last_validation(machine.view),
        tokens_per_s=service.tokens_per_s,
        up_bytes=traffic.control_up_bytes + traffic.bulk_up_bytes,
        down_bytes=traffic.control_down_bytes + traffic.bulk_down_bytes,
        standing=_standing(service),
        earned_micro=machine.earned_micro,
        epsilon=service.privately.epsilon if service.privately else None,
    )


def last_validation(view: RunView) -> float | None:
    """The newest validation loss in the log."""
    for step in reversed(view.path):
        words = view.attested.get(step.position, {})
        found = [words[node].validation for node in sorted(words)]
        for value in found:
            if value is not None:
                return value
    return None


def _standing(service: NodeService) -> str:
    machine, node = service.machine, service.identity.node
    if not machine.connected:
        several = machine.recipe is not None and machine.recipe.membership.coordinators
        return (
            "out: no coordinator answers that leads" if several else "out: no connection to the coordinator"
        )
    if machine.why_out:
        return f"out: {machine.why_out}"
    if node in machine.view.planned:
        return "in"
    if machine.view.stopped is not None:
        return f"over: {machine.view.stopped}"
    return "not in this round yet"


def show(now: NodeNow) -> str:
    """One line."""
    loss = f"loss {now.loss:.3f}" if now.loss is not None else "loss -"
    if now.validation is not None:
        loss += f" (validation {now.validation:.3f})"
    speed = f"{show_count(int(now.tokens_per_s))} tokens/s"
    traffic = f"up {show_bytes(now.up_bytes)}, down {show_bytes(now.down_bytes)}"
    words = f"round {now.round} · {now.doing} · {loss} · {speed} · {traffic} · {now.standing}"
    words += f" · epsilon {now.epsilon:.3g}" if now.epsilon is not None else ""
    words += f" · earned {show_credits(now.earned_micro)}" if now.earned_micro else ""
    return printable(words, MAX_LINE)
