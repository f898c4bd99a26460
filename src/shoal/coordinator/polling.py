"""Asking a run's voters: members over the connections they have here, the other coordinators over lines.

In flow a question and a count; out flow answers into the count. Invariant: whoever has not answered is asked again
while there is time, and a voter that is behind is sent what it lacks, so that it can answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from shoal.base.host import Host
from shoal.base.ids import NodeId
from shoal.coordinator.contest import Caller, Contest
from shoal.coordinator.lines import Line
from shoal.runlog.ballots import Election, Tally
from shoal.wire.ballots import AskVote, Propose, Stored, Vote
from shoal.wire.messages import Entries, encode

AGAIN_S = 0.5
Spawn = Callable[[Coroutine[Any, Any, None], str], None]


class Polling:
    def __init__(
        self,
        host: Host,
        lines: Mapping[str, Line],
        callers: Callable[[Contest], Mapping[NodeId, Caller]],
        spawn: Spawn,
    ) -> None:
        self._host, self._lines, self._callers, self._spawn = host, lines, callers, spawn
        self._asking: set[tuple[str, str]] = set()

    async def ask(
        self,
        contest: Contest,
        counting: Election | Tally,
        question: AskVote | Propose,
        over: Callable[[], bool],
        within_s: float,
    ) -> None:
        """Until it is over, or has taken too long."""
        clock, frame = self._host.clock, encode(question)
        contest.counting, deadline = counting, self._host.clock.now() + within_s
        while not over() and clock.now() < deadline:
            self._send(contest, counting, question, frame)
            again = min(deadline, clock.now() + AGAIN_S)
            while not over() and clock.now() < again:
                contest.news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await contest.news.wait()
        if contest.counting is counting:
            contest.counting = None

    def _send(
        self, contest: Contest, counting: Election | Tally, question: AskVote | Propose, frame: bytes
    ) -> None:
        callers, awaited = self._callers(contest), counting.awaited()
        # Those who are no voters here may know of entries by which they are.
        strangers = {*callers} - counting.voters if isinstance(counting, Election) else set()
        for node in sorted({*callers} & awaited | strangers):
            callers[NodeId(node)].put(frame)
        for address in sorted({*self._lines} & awaited):
            if (contest.run, address) not in self._asking:
                self._asking.add((contest.run, address))
                self._spawn(self._ask_line(contest, self._lines[address], question), f"ask {address}")

    async def _ask_line(self, contest: Contest, line: Line, question: AskVote | Propose) -> None:
        answer = await line.ask(question)
        self._asking.discard((contest.run, line.address))
        if answer is not None:
            self.count(contest, line.address, answer)

    def count(self, contest: Contest, voter: str, answer: Vote | Stored) -> None:
        """A voter's answer, to whatever is being counted."""
        counting = contest.counting
        if isinstance(counting, Election) and isinstance(answer, Vote):
            counting.heard(voter, answer)
        elif isinstance(counting, Tally) and isinstance(answer, Stored):
            counting.heard(voter, answer)
            if not answer.stored and answer.length < counting.position:
                self._spawn(self._teach(contest, voter, answer.length), "bring a voter up to date")
        contest.highest = max(contest.highest, answer.promised)
        contest.news.set()

    async def _teach(self, contest: Contest, voter: str, length: int) -> None:
        caller = self._callers(contest).get(NodeId(voter))
        if caller is not None:
            async with contest.busy:
                page = await self._host.work(lambda: contest.voter.page(length))
            if page:
                caller.put(encode(Entries(items=page)))
