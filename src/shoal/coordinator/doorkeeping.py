"""Keeping the door: what is known of whoever knocks, gathered for the judgement, and how fast members may talk.

In flow hellos and the run's rules; out flow refusals or nothing. Invariant: a use of a ticket is durable before its
node is let in; the organiser's own check is asked last, of those alone who passed everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from shoal.base.host import Host
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.admission import Door, JoinToken, find_token, judge, node_of, wanted_versions
from shoal.coordinator.keyring import read_keys
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Hello, Refuse
from shoal.wire.versions import HERE, Speaks

Stake = Callable[[RunId, NodeId], str]
"""The organiser's own check of a newcomer, of a stake for example: "" to let it in, or why not. It may block."""
USE_PREFIX = "use."
STAKE_S = 10.0
BURST_FRAMES, FRAMES_S = 400.0, 100.0
"""A member may say so many things at once, and so many a second over time; beyond that it is listened to slowly."""


@dataclass(slots=True)
class Allowance:
    """One member's, on one connection."""

    now: float
    left: float = BURST_FRAMES

    def wait_s(self, now: float) -> float:
        """Something was said: for how long not to listen."""
        self.left = min(BURST_FRAMES, self.left + (now - self.now) * FRAMES_S) - 1
        self.now = now
        return max(0.0, -self.left / FRAMES_S)


class Doorkeeper:
    def __init__(
        self,
        host: Host,
        store: LogStore,
        coordinator: NodeId,
        stake: Stake | None = None,
        speaks: Speaks = HERE,
    ) -> None:
        self._speaks = speaks
        self._host = host
        self._store = store
        self._coordinator = coordinator
        self._stake = stake

    async def judge(
        self, hello: Hello, nonce: bytes, view: RunView, recipe: Recipe, tokens: tuple[JoinToken, ...]
    ) -> Refuse | None:
        """Why this node may not join, or None."""
        shown = read_keys(hello, view)
        if isinstance(shown, Refuse):
            return shown
        node, wall_ms = node_of(hello), self._host.clock.wall_ms()
        token, is_member = find_token(hello.token, tokens), node in view.members
        limited = token is not None and token.uses is not None and not is_member
        uses = await self._uses(hello.run, token) if limited and token is not None else set()
        door = Door(
            ban=view.banned(node, wall_ms),
            allow=recipe.membership.allow,
            work_bits=recipe.membership.work_bits,
            used=len(uses - {_short(node)}),
            speaks=wanted_versions(self._speaks, bool(recipe.membership.coordinators)),
        )

        def judged(door: Door) -> Refuse | None:
            return judge(
                hello,
                nonce=nonce,
                run=hello.run,
                coordinator=self._coordinator,
                tokens=tokens,
                is_member=is_member,
                wall_ms=wall_ms,
                door=door,
                speaker=shown.speaker,
            )

        refuse = judged(door)
        if refuse is not None or is_member:
            return refuse
        if why := await self._unvouched(hello.run, node):
            return judged(Door(work_bits=door.work_bits, unvouched=why, speaks=door.speaks))
        if limited and token is not None and not hello.probe:
            key = f"{_uses_of(token)}{_short(node)}"
            await self._host.work(lambda: self._store.keep(hello.run, key, b"1"))
        return None

    async def _uses(self, run: RunId, token: JoinToken) -> set[str]:
        prefix = _uses_of(token)
        kept = await self._host.work(lambda: self._store.kept(run, prefix))
        return {key.removeprefix(prefix) for key in kept}

    async def _unvouched(self, run: RunId, node: NodeId) -> str:
        stake = self._stake
        if stake is None:
            return ""
        try:
            async with asyncio.timeout(STAKE_S):
                return await self._host.work(lambda: stake(run, node))
        except Exception as error:  # It is the organiser's code, and whatever it does nobody is let in by it.
            return f"the organiser's check failed: {type(error).__name__}"


def _uses_of(token: JoinToken) -> str:
    return f"{USE_PREFIX}{token.sha256[:16]}."


def _short(node: NodeId) -> str:
    return node[:16]
