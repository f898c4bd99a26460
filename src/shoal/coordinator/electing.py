"""Leading by majority: coordinators that each have a store of their own, and a log that voters keep.

In flow what voters answer and what the other coordinators know; out flow entries that are final, and runs to serve.
Invariant: an entry reaches this coordinator's store, and so anybody's ears, only once a majority has stored it; whoever
cannot get a majority gives up the lead and asks for votes again (`runlog.ballots` says why that is safe).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

import msgspec

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host, Peer
from shoal.base.ids import NodeId, RunId
from shoal.base.lead import lead_lost
from shoal.base.logstore import LogStore
from shoal.coordinator.contest import NEVER, NOTHING, Caller, Contest, enter, known, small_values, values_hash
from shoal.coordinator.lines import Line, is_colleague
from shoal.coordinator.polling import Polling, Spawn
from shoal.runlog.ballots import Election, Tally, majority, make_proposal
from shoal.runlog.chain import BadEntry
from shoal.wire.ballots import NO_BALLOT, AskVote, Ballot, Follow, Followed, News, Propose, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.messages import decode, encode
from shoal.wire.signed import Signed, parse

log = logging.getLogger(__name__)

POLL_S = 0.5
LAPSE_S = 1.5
"""For so long after its last word a leader is taken to be there."""
VOTES_S, COMMIT_S = 3.0, 10.0
"""How long votes are waited for, and how long a leader waits for a majority before it gives up."""
OPEN_S = 600.0
FOUNDER_S = 10.0
"""So long a run that has only begun is left to the coordinator that founded it, which somebody waits for."""
COPY_S = 2.0
NAMED = 8
"""How many of those who are not here are named."""
STUCK_S, AGAIN_S = 5.0, 30.0
"""Nobody has led for so long: that is no change of leaders any more, and somebody should know; again when the reason
has changed, but no sooner than after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What elections need of the coordinator they are held in."""

    host: Host
    identity: Identity
    store: LogStore
    spawn: Spawn
    serve: Callable[[Contest], Awaitable[None]]
    """Serve a run that was won."""
    serve_over: Callable[[Contest], Awaitable[bool]]
    """Serve a run to which nothing will be added any more, if it is one."""
    drop: Callable[[Contest], None]
    """Serve a run no more: somebody else leads, or nobody."""
    callers: Callable[[RunId], Mapping[NodeId, Caller]]
    """The members connected to a run that is served."""
    close: Callable[[Caller], None]
    copy: Callable[[], Awaitable[None]]
    """Fetch some of the states and data that a leader would need."""


class Elections:
    """All runs of one coordinator that a majority keeps. `others` is where to look for more."""

    def __init__(self, ground: Ground, others: tuple[str, ...] = ()) -> None:
        self.contests: dict[RunId, Contest] = {}
        self.address = ""
        self._blobs = ""
        self._ground = ground
        self._host, self._store = ground.host, ground.store
        self._others = others
        self._mark = ""
        """Drawn at this start: no ballot of another is the same."""
        self._lines: dict[str, Line] = {}
        self._polling = Polling(self._host, self._lines, self._callers, ground.spawn)
        self._copying = False
        self._refused: dict[RunId, ShoalError] = {}
        """Runs of the store that this coordinator has no part in, and why."""

    # --- which runs there are ----------------------------------------------------------------------------

    def start(self, address: str, blobs: str) -> dict[RunId, ShoalError]:
        """Take part from now on; in which runs it cannot, and why."""
        self.address, self._blobs = address, blobs
        for other in self._others:
            self._draw_line(other)
        for run, contest in sorted(self.contests.items()):
            try:
                self._begin(contest)
            except ShoalError as error:
                self._refused[run] = error
                del self.contests[run]
        return self._refused

    def check_listed(self, coordinators: Sequence[str]) -> None:
        """Refuse to found a run that this coordinator has no part in. Raises SH-LEAD-02."""
        if coordinators and self.address not in coordinators:
            raise _not_listed("the run", coordinators, self.address)

    def add(self, run: RunId, entries: list[bytes]) -> Contest | None:
        """Take part in a run of the store, if it is one that a majority keeps. Raises SH-LEAD-02, SH-LOG-01 or
        SH-KEY-02."""
        contest = self.contests.get(run)
        if contest is None:
            contest = enter(self._store, run, entries, self._ground.identity.public)
            if contest is not None and self.address:
                self._begin(contest)
            if contest is not None:
                self.contests[run] = contest
        return contest

    async def lead(self, contest: Contest) -> None:
        """Wait until this coordinator leads a run that it has founded. Raises SH-LEAD-02 if that takes too long, and
        SH-LEAD-01 if another does."""
        deadline = self._now() + OPEN_S
        while not contest.served:
            if self._is_led(contest):
                raise lead_lost(contest.led_by.leader)
            if self._now() > deadline:
                raise _no_majority(contest)
            await self._host.clock.sleep(POLL_S / 4)

    def _begin(self, contest: Contest) -> None:
        if self.address not in contest.coordinators:
            raise _not_listed(f"run {contest.run[:12]}", contest.coordinators, self.address)
        for address in contest.coordinators:
            self._draw_line(address)
        contest.voter.name, contest.led_at = self._mark, self._now()
        self._ground.spawn(self._contend(contest), f"contend for {contest.run[:8]}")
        if not self._copying:
            self._copying = True
            self._ground.spawn(self._keep_copying(), "copy what leaders have")

    def _draw_line(self, address: str) -> None:
        self._mark = self._mark or self._host.random.randbytes(8).hex()
        if address not in (self.address, *self._lines):
            line = Line(self._host, self._ground.identity, self._mark, address)
            self._lines[address] = line
            self._ground.spawn(self._keep_following(line), f"follow {address}")

    @property
    def learns(self) -> bool:
        """Whether runs may turn up here that others have founded."""
        return bool(self._others)

    def peers(self) -> list[Peer]:
        """Where the other coordinators' blobs are served."""
        node, lines = self._ground.identity.node, self._lines.values()
        return [Peer(node=node, address=line.blobs) for line in lines if line.up and line.blobs]

    async def _keep_copying(self) -> None:
        while True:
            await self._host.clock.sleep(COPY_S)
            await self._ground.copy()

    # --- following the others ----------------------------------------------------------------------------

    async def _keep_following(self, line: Line) -> None:
        while True:
            runs = [await known(self._host, self._store, c) for c in list(self.contests.values())]
            answer = await line.follow(tuple(runs))
            more = [await self._take_news(line, news) for news in (answer.runs if answer else ())]
            if not any(more):
                await self._host.clock.sleep(POLL_S)

    async def _take_news(self, line: Line, news: News) -> bool:
        """What another coordinator has; True if there may be more at once."""
        if news.run in self._refused:
            return False
        contest = self.contests.get(news.run) or await self._learn(news)
        if contest is None:
            return False
        if news.leads is not None and news.leads >= max(contest.led_by, self._own(contest)):
            contest.leader, contest.leader_at, contest.led_by = line.address, self._now(), news.leads
            contest.highest = max(contest.highest, news.leads)
            self._step_down(contest, f"the coordinator at {line.address} leads")
        if contest.leading:
            return False
        await self._take_entries(contest, news.entries)
        if news.kept is not None:
            await self._take_values(news)
            contest.values_at = NEVER
        return bool(news.entries)

    async def _take_values(self, news: News) -> None:
        for key, value in news.kept or ():
            await self._host.work(partial(self._store.keep, news.run, key, value))

    def _own(self, contest: Contest) -> Ballot:
        return contest.ballot if contest.leading else NO_BALLOT

    async def _learn(self, news: News) -> Contest | None:
        """A run that is not here yet."""
        await self._take_values(news)  # Tickets first: whoever leads must know them.
        if news.entries and not await self._host.work(partial(self._store.length, news.run)):
            await self._host.work(partial(self._store.append, news.run, 0, news.entries[0]))
        entries = await self._host.work(lambda: list(self._store.read(news.run)))
        contest = self.add(news.run, entries) if entries else None
        if contest is not None and contest.tail.length == 1:
            contest.yields_until = self._now() + FOUNDER_S
        return contest

    async def _take_entries(self, contest: Contest, entries: tuple[bytes, ...]) -> None:
        """Final entries, from whoever has them."""
        for encoded in entries:
            await self._keep(contest, encoded)

    async def _keep(self, contest: Contest, encoded: bytes) -> bool:
        async with contest.busy:
            position = contest.tail.length
            try:
                contest.tail.take(encoded)
            except BadEntry:
                return False  # One that is here, or one from further on, which comes again.
            await self._host.work(partial(self._store.append, contest.run, position, encoded))
            return True

    async def serve_line(self, channel: Channel, first: Follow, nonce: bytes) -> None:
        """Answer another coordinator for as long as it asks."""
        if not is_colleague(first, nonce, self._ground.identity):
            return
        channel.admit()
        message: object = first
        with contextlib.suppress(ChannelClosed, ShoalError):
            while True:
                answer: Followed | Vote | Stored | None = None
                if isinstance(message, Follow):
                    answer = await self._news_for(message)
                elif isinstance(message, AskVote | Propose):
                    answer = await self._answer(message)
                if answer is not None:
                    await channel.send(encode(answer))
                message = decode(await channel.recv())

    async def _news_for(self, follow: Follow) -> Followed:
        theirs = {item.run: item for item in follow.runs}
        news = []
        for run, contest in list(self.contests.items()):
            has = theirs.get(run)
            async with contest.busy:
                page = partial(contest.voter.page, has.length if has is not None else 0)
                entries = await self._host.work(page)
            values = await small_values(self._host, self._store, contest)
            # One that leads knows best; of the others, whoever has anything helps one that has nothing.
            theirs_kept = has.kept if has is not None else NOTHING
            wanted = theirs_kept != values_hash(values) and (contest.leading or theirs_kept == NOTHING)
            leads = contest.ballot if contest.leading else None
            news.append(News(run=run, leads=leads, entries=entries, kept=values if wanted else None))
        return Followed(name=self._mark, blobs=self._blobs, runs=tuple(news))

    async def _answer(self, message: AskVote | Propose) -> Vote | Stored | None:
        """This coordinator's own vote."""
        contest = self.contests.get(message.run)
        if contest is None:
            return None
        async with contest.busy:
            answer = await self._host.work(partial(contest.voter.answer, message))
        if answer is not None and answer.promised > contest.highest:
            contest.highest = answer.promised
            self._yield(contest)
            self._step_down(contest, "another coordinator has asked for votes")
        return answer

    # --- members -----------------------------------------------------------------------------------------

    def hold(self, run: RunId, node: NodeId, caller: Caller) -> bool:
        """Somebody has come to a coordinator that does not lead: whether it is to stay for an election."""
        contest = self.contests.get(run)
        if contest is None or contest.leading:
            return False
        contest.held[node], contest.held_at[node] = caller, self._now()
        contest.news.set()
        return True

    def let_go(self, run: RunId, node: NodeId, caller: Caller) -> None:
        contest = self.contests.get(run)
        if contest is not None and contest.held.get(node) is caller:
            del contest.held[node], contest.held_at[node]

    def hears(self, run: RunId, node: NodeId, answer: Vote | Stored) -> None:
        """A member's answer."""
        contest = self.contests.get(run)
        if contest is not None:
            self._polling.count(contest, node, answer)

    def _callers(self, contest: Contest) -> Mapping[NodeId, Caller]:
        return self._ground.callers(contest.run) if contest.leading else contest.held

    # --- winning the lead, and losing it -----------------------------------------------------------------

    def _now(self) -> float:
        return self._host.clock.now()

    async def _contend(self, contest: Contest) -> None:
        """Stand by while somebody leads; else ask for votes, once enough voters can be asked."""
        promised = await self._host.work(lambda: contest.voter.promised)
        contest.highest = max(contest.highest, promised)
        while True:
            await self._host.clock.sleep(POLL_S * (0.2 + self._host.random.random()))
            if contest.leading or contest.served:
                continue
            self._tell_if_stuck(contest)
            yields = self._now() < contest.yields_until
            if not yields and self._may_win(contest) and await self._campaign(contest):
                contest.leading, contest.leader, contest.leader_at = True, "", NEVER
                contest.led_by = contest.ballot
                log.info("leads", extra={"run": contest.run[:12], "term": contest.ballot.term})
                await self._ground.serve(contest)
                contest.served = contest.leading
            elif self._is_led(contest):
                self._send_away(contest)
            elif contest.tail.stopped:
                # Its members have gone, and there is nothing left to vote on.
                contest.served = await self._ground.serve_over(contest)

    def _tell_if_stuck(self, contest: Contest) -> None:
        """Say once why nobody leads, and again when that changes."""
        now = self._now()
        if self._is_led(contest) or contest.tail.stopped:
            contest.led_at, contest.told, contest.told_at = now, "", NEVER
        elif (
            now - max(contest.led_at + STUCK_S, contest.told_at + AGAIN_S) > 0
            and contest.told != contest.waiting
        ):
            contest.told, contest.told_at = contest.waiting, now
            log.warning(
                "nobody_leads", extra={"run": contest.run[:12], "cause": f"waits for {contest.waiting}"}
            )

    def why_not(self, run: RunId) -> ShoalError | None:
        """Why a run that a majority keeps is not served here; None for any other run."""
        contest = self.contests.get(run)
        if contest is None or contest.served:
            return None
        if not self._is_led(contest):
            return _no_majority(contest)
        return ShoalError(
            "SH-LEAD-03",
            f"this coordinator stands by: the one at {contest.leader} leads run {run[:12]}",
            "ask that one's HTTP API: name it with --server, or give its --home",
        )

    def _yield(self, contest: Contest) -> None:
        """Leave the field to somebody else for a while, so that two do not outbid each other for ever."""
        contest.yields_until = self._now() + VOTES_S * self._host.random.random()

    def _is_led(self, contest: Contest) -> bool:
        line = self._lines.get(contest.leader)
        return self._now() - contest.leader_at <= LAPSE_S and line is not None and line.up

    def _send_away(self, contest: Contest) -> None:
        """Somebody leads: whoever waits here in vain is to go there."""
        for node, caller in list(contest.held.items()):
            if self._now() - contest.held_at[node] > LAPSE_S:
                self._ground.close(caller)

    def _may_win(self, contest: Contest) -> bool:
        """Whether enough voters can be asked. While somebody leads, those who have waited here count, and it does not:
        members come here only if they cannot reach it."""
        voters, led, since = contest.tail.voters, self._is_led(contest), self._now() - LAPSE_S
        waited = {node for node in contest.held if not led or contest.held_at[node] < since}
        lines = {address for address, line in self._lines.items() if line.up}
        here = ({self.address, *waited, *lines} - ({contest.leader} if led else set())) & voters
        absent, silent = (
            _listed(", missing ", voters - here),
            _listed(", no vote from ", contest.silent & here),
        )
        contest.waiting = f"a majority of {len(voters)} voters: {len(here)} here{absent}{silent}"
        lapsed = self._now() - contest.leader_at > LAPSE_S
        return (lapsed or bool(waited)) and (len(here) >= majority(voters) or bool(waited - voters))

    async def _campaign(self, contest: Contest) -> bool:
        """Ask for votes, read what the voters have, and finish what may be final. True if this coordinator leads."""
        term = max(contest.highest.term, contest.tail.term) + 1
        contest.ballot = contest.highest = Ballot(term, self._mark)
        while contest.highest == contest.ballot:
            length = contest.tail.length
            election = Election(contest.tail.voters, contest.ballot, length)
            ask = AskVote(run=contest.run, ballot=contest.ballot, length=length)
            await self._poll(contest, election, ask, _decided(election), VOTES_S)
            await self._take_entries(contest, election.entries)
            if contest.tail.length != length:
                continue
            contest.silent = frozenset() if election.decided else election.awaited()
            if not election.won:
                self._yield(contest)
                return False
            async with contest.busy:
                copy = await self._host.work(contest.voter.copy)
            unfinished = election.to_finish(copy)
            if unfinished is None:
                return contest.highest == contest.ballot
            if not await self._propose(contest, length, unfinished.payload):
                return False
        return False

    def _step_down(self, contest: Contest, why: str) -> None:
        if contest.leading or contest.served:
            contest.leading = contest.served = False
            log.info("deposed", extra={"run": contest.run[:12], "cause": why})
            self._ground.drop(contest)
        contest.news.set()

    # --- keeping entries ---------------------------------------------------------------------------------

    async def commit(self, run: RunId, position: int, encoded: bytes) -> None:
        """Have a majority store an entry, then this coordinator's own store. Raises SH-LEAD-01 if the lead is lost."""
        contest, signed = self.contests[run], parse(encoded, Signed)
        mine = contest.leading and contest.tail.length == position and signed is not None
        if not mine or signed is None or not await self._propose(contest, position, signed.payload):
            self._step_down(contest, "no majority has stored its entry")
            raise lead_lost(contest.highest.leader)

    async def _propose(self, contest: Contest, position: int, payload: bytes) -> bool:
        """Whether an entry is final, and in the store."""
        identity, ballot, led = self._ground.identity, contest.ballot, contest.leading
        propose = make_proposal(identity, contest.run, ballot, position, payload)
        tally = Tally(contest.tail.voters, ballot, position)
        await self._poll(contest, tally, propose, lambda: tally.final or contest.leading != led, COMMIT_S)
        if not tally.final:
            return False
        entry = Signed(payload, identity.sign("Entry", payload))  # From now on nothing else may stand there.
        return await self._keep(contest, msgspec.msgpack.encode(entry))

    async def _poll(
        self,
        contest: Contest,
        counting: Election | Tally,
        question: AskVote | Propose,
        over: Callable[[], bool],
        within_s: float,
    ) -> None:
        contest.counting = counting
        own = await self._answer(question)
        if own is not None:
            self._polling.count(contest, self.address, own)
        await self._polling.ask(contest, counting, question, over, within_s)


def _decided(election: Election) -> Callable[[], bool]:
    return lambda: election.decided


def _listed(before: str, voters: Set[str]) -> str:
    named = sorted(voter if ":" in voter else f"node {voter[:12]}" for voter in voters)
    return before + ", ".join([*named[:NAMED], *(["..."] if len(named) > NAMED else [])]) if named else ""


def _not_listed(run: str, coordinators: Sequence[str], address: str) -> ShoalError:
    return ShoalError(
        "SH-LEAD-02",
        f"{run} is led by {', '.join(coordinators)} (membership.coordinators); this coordinator is {address}",
        "start it with --advertise and --control-port so that it has one of these addresses",
    )


def _no_majority(contest: Contest) -> ShoalError:
    return ShoalError(
        "SH-LEAD-02",
        f"run {contest.run[:12]} waits for {contest.waiting}",
        "start those again, or connect them; the run goes on by itself then",
    )
