"""Lines between coordinators that each have a store of their own: one asks, the other answers.

In flow questions (what is new, a vote, a proposal); out flow the answers, or None. Invariant: one question at a time is
out on a line, and a line whose answer is late is opened anew, so that an answer is never taken for another's.
"""

from __future__ import annotations

import asyncio
import contextlib

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host
from shoal.wire.ballots import AskVote, Follow, Followed, FollowProof, Known, Propose, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.messages import Challenge, decode, encode
from shoal.wire.signed import Signed, open_signed, sign
from shoal.wire.versions import VOTES

ANSWER_S = 2.0
OPEN_S = 3.0
Question = Follow | AskVote | Propose
Answer = Followed | Vote | Stored


class Line:
    """One coordinator's line to another, at one address."""

    def __init__(self, host: Host, identity: Identity, name: str, address: str) -> None:
        self.address = address
        self.blobs = ""
        """Where the other's blobs are served."""
        self.up = False
        """Whether it answered lately."""
        self._host, self._identity, self._name = host, identity, name
        self._channel: Channel | None = None
        self._proof: Signed | None = None
        self._busy = asyncio.Lock()

    async def follow(self, runs: tuple[Known, ...]) -> Followed | None:
        """What the other has that we have not."""
        async with self._busy:
            if await self._open() and self._proof is not None:
                answer = await self._ask(Follow(name=self._name, proof=self._proof, runs=runs))
                if isinstance(answer, Followed) and answer.name != self._name:
                    self.blobs, self.up = answer.blobs, True
                    return answer
        self.up = False
        return None

    async def ask(self, question: AskVote | Propose) -> Vote | Stored | None:
        """The other's vote."""
        async with self._busy:
            answer = await self._ask(question) if self._channel is not None else None
        return answer if isinstance(answer, Vote | Stored) else None

    async def _open(self) -> bool:
        if self._channel is not None:
            return True
        try:
            async with asyncio.timeout(OPEN_S):
                channel = await self._host.connect(self.address, self._identity.node)
                challenge = decode(await channel.recv())
        except (ChannelClosed, ShoalError, TimeoutError):
            return False
        if isinstance(challenge, Challenge) and challenge.speaks.newest >= VOTES:
            self._channel = channel
            self._proof = sign(self._identity, FollowProof(nonce=challenge.nonce, name=self._name))
        return self._channel is not None

    async def _ask(self, question: Question) -> object:
        channel = self._channel
        assert channel is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                await channel.send(encode(question))
                while not _answers(answer := decode(await channel.recv()), question):
                    pass  # An earlier question's, which came twice.
                return answer
        except (ChannelClosed, ShoalError, TimeoutError):
            self._channel, self.up = None, False
            with contextlib.suppress(ChannelClosed):
                await channel.close()
            return None


def _answers(answer: object, question: Question) -> bool:
    match question:
        case Follow():
            return isinstance(answer, Followed)
        case AskVote():
            asked = (question.run, question.ballot, question.length)
            return isinstance(answer, Vote) and (answer.run, answer.ballot, answer.asked) == asked
        case Propose():
            return isinstance(answer, Stored) and answer.run == question.run


def is_colleague(follow: Follow, nonce: bytes, identity: Identity) -> bool:
    """Whether whoever follows has the coordinators' key, on this connection."""
    proof = open_signed(follow.proof, FollowProof, identity.public)
    return proof is not None and (proof.nonce, proof.name) == (nonce, follow.name)
