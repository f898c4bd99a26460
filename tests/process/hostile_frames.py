"""Hostile frames by the thousand, for a live coordinator and a live node.

In flow a seed and a count; out flow frames that are garbage, or well formed and untrue in every field. Invariant: what
is sent is a function of the seed; a connection that is cut is opened again, and every frame that left is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import ssl

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.runlog.entries import Attestation, Claim, DataRange, Head, Verdict
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    PROTOCOL,
    Attest,
    Audited,
    Challenge,
    ClaimAck,
    Folded,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    NeedEntries,
    Offer,
    Proof,
    Refuse,
    Stuck,
    decode,
    encode,
)
from shoal.wire.signed import Signed, sign
from shoal.worlds.real.tls import client_context

GARBAGE_SHARE = 0.02
NUMBERS = (-(2**63), -1, 1, 2**31, 2**62, 2**63 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 1e308)
ADDRESSES = (
    "",
    "127.0.0.1:1",
    "a..b:1",
    ".x:9",
    "a" * 64 + ":80",
    "\u2100.com:80",
    "\0:1",
    "[::1",
    "here:99999",
)


class Fuzzer:
    """Draws frames that a member might send."""

    def __init__(self, run: RunId, identity: Identity, seed: int) -> None:
        self.identity = identity
        self._run = run
        self._random = random.Random(seed)

    def frame(self) -> bytes:
        if self._random.random() < GARBAGE_SHARE:
            return self._garbage()
        return encode(self._message())

    def hello(self, token: str, challenge: Challenge) -> Hello:
        proof = Proof(run=self._run, coordinator=challenge.coordinator, nonce=challenge.nonce)
        return Hello(
            protocol=PROTOCOL,
            run=self._run,
            public=self.identity.public,
            token=token,
            name=self._text(),
            address=self._random.choice(ADDRESSES),
            length=0,
            proof=sign(self.identity, proof),
        )

    def _garbage(self) -> bytes:
        good = bytearray(encode(self._message()))
        match self._random.randrange(4):
            case 0:
                return self._random.randbytes(self._random.randrange(1, 2000))
            case 1:
                return bytes(good[: self._random.randrange(len(good))])
            case 2:
                return b"\x91" * self._random.randrange(1, 5000)
        for _ in range(self._random.randrange(1, 8)):
            good[self._random.randrange(len(good))] ^= 1 << self._random.randrange(8)
        return bytes(good)

    def _message(self) -> Message:
        choose = self._random.choice
        number = choose(NUMBERS)
        match self._random.randrange(10):
            case 0:
                return NeedEntries(start=number)
            case 1:
                return Stuck(at=number, blob=BlobId(self._text()), seconds=choose(FLOATS))
            case 2:
                return Heartbeat(
                    at=-1,
                    length=number,
                    peers=number,
                    doing=self._text(),
                    loss=choose(FLOATS),
                    tokens_per_s=-1.0,
                )
            case 3:
                return Attest(attestation=self._signed(self._attestation(number)))
            case 4:
                return Folded(word=Signed(self._random.randbytes(40), self._random.randbytes(64)))
            case 5:
                return Audited(verdict=self._signed(self._verdict(number)))
            case 6:
                return ClaimAck(sequence=number, kept=True, reason=self._text())
            case 7:
                return Refuse(code=self._text(), cause=self._text(), next_step="")
            case 8 if self._random.random() < 0.02:
                return Goodbye(reason=self._text())
        return Offer(claim=self._signed(self._claim(number)), receipts=(Signed(b"", b""),) * 3)

    def _signed(self, value: Attestation | Claim | Verdict) -> Signed:
        if self._random.random() < 0.5:
            return Signed(self._random.randbytes(100), self._random.randbytes(64))
        return sign(self.identity, value)

    def _claim(self, number: int) -> Claim:
        return Claim(
            run=self._run,
            node=self.identity.node,
            sequence=number,
            round=number,
            plan=self._random.choice((0, 1, number)),
            head=Head(number, self._text()),
            base=((0, number),) * self._random.randrange(3),
            steps=number,
            samples=number,
            tokens=number,
            data=(DataRange(number, number),) * self._random.randrange(4),
            local_before=self._text(),
            local_after=self._text(),
            blob=BlobId(self._text()),
            size_bytes=number,
            loss=self._random.choice(FLOATS),
        )

    def _attestation(self, number: int) -> Attestation:
        return Attestation(run=self._run, node=self.identity.node, at=Head(number, ""), state=self._text())

    def _verdict(self, number: int) -> Verdict:
        return Verdict(
            run=self._run,
            node=self.identity.node,
            at=Head(number, self._text()),
            author=NodeId(self._text()),
            sequence=number,
            outcome=self._text(),
            distance=math.nan,
        )

    def _text(self) -> str:
        return self._random.choice(("", "a" * 64, "../../etc", "\x1b[31m", "ü" * 300, "0" * 63))


async def as_members(
    url: str, coordinator: NodeId, run: RunId, token: str, *, count: int, members: int, seed: int
) -> int:
    """Send so many frames, spread over so many members at a time; how many left."""
    context = client_context(coordinator)
    fuzzers = [Fuzzer(run, Identity(bytes([seed % 256, i]) + bytes(30)), seed + i) for i in range(members)]
    share = -(-count // members)
    sent = await asyncio.gather(*(_member(url, context, token, fuzzer, share) for fuzzer in fuzzers))
    return sum(sent)


async def _member(url: str, context: ssl.SSLContext, token: str, fuzzer: Fuzzer, count: int) -> int:
    sent = 0
    while sent < count:
        with contextlib.suppress(WebSocketException, OSError, TimeoutError):
            async with connect(url, ssl=context, proxy=None, compression=None, open_timeout=60) as socket:
                await _join(socket, token, fuzzer)
                listening = asyncio.ensure_future(_drain(socket))
                try:
                    while sent < count and not listening.done():
                        await socket.send(fuzzer.frame())
                        sent += 1
                finally:
                    listening.cancel()
    return sent


async def _join(socket: ClientConnection, token: str, fuzzer: Fuzzer) -> None:
    challenge = decode(await socket.recv(decode=False))
    assert isinstance(challenge, Challenge)
    await socket.send(encode(fuzzer.hello(token, challenge)))


async def _drain(socket: ClientConnection) -> None:
    with contextlib.suppress(WebSocketException, OSError):
        async for _ in socket:
            pass


def to_peers(host: str, port: int, node: NodeId, run: RunId, *, count: int, seed: int) -> int:
    """Requests to a process's blob port: wrong heads, paths, ranges and bodies; how many left."""
    import socket as sockets

    chance, sent = random.Random(seed), 0
    while sent < count:
        with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
            plain = sockets.create_connection((host, port), timeout=20)
            with client_context(node).wrap_socket(plain) as secure:
                while sent < count:
                    secure.sendall(_request(chance, run))
                    sent += 1
                    if not secure.recv(65536):
                        break
    return sent


def _request(chance: random.Random, run: RunId) -> bytes:
    path = chance.choice(
        (
            f"/{run}/blobs/{chance.randbytes(32).hex()}",
            f"/{run}/blobs/{'0' * 63}",
            f"/{run}/log/{chance.choice(NUMBERS)}",
            f"/{run}/proof",
            "/../../key",
            "/" + "a" * chance.randrange(2000),
        )
    )
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(1, 300)) + b"\r\n\r\n"
        case 1:
            size = chance.randrange(64)
            return f"PUT {path}/chunks HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size)
        case 2:
            return f"PUT {path} HTTP/1.1\r\nContent-Length: {chance.choice(NUMBERS)}\r\n\r\n".encode()
        case 3:
            low, high = chance.choice(NUMBERS), chance.choice(NUMBERS)
            return f"GET {path} HTTP/1.1\r\nRange: bytes={low}-{high}\r\n\r\n".encode()
    return f"GET {path} HTTP/1.1\r\n\r\n".encode()
