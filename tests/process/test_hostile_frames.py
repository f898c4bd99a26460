"""Strangers who speak nonsense on both ports do not disturb a training.

The run that is in training all the while is checked at the end, by its fixture.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from shoal.wire.identity import Identity
from shoal.wire.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    Challenge,
    Hello,
    Proof,
    Refuse,
    Welcome,
    decode,
    encode,
)
from shoal.wire.signed import sign
from shoal.wire.ticket import read_ticket
from shoal.worlds.real.tls import client_context

from .fleet import Fleet

TIMEOUT_S = 20.0
WAIT = b"\0wait"
"""In a list of frames to send: be welcomed first, and before that hear what everybody is told meanwhile."""


def _raw(fleet: Fleet, port: int) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    return client_context(fleet.coordinator_id()).wrap_socket(sock)


def _answer(sock: ssl.SSLSocket, sent: bytes) -> bytes:
    """What the other side says to these bytes before it closes."""
    parts = []
    try:
        sock.sendall(sent)
        while piece := sock.recv(65536):
            parts.append(piece)
    except (ConnectionError, ssl.SSLError, TimeoutError):
        pass
    finally:
        sock.close()
    return b"".join(parts)


def _goes_on(fleet: Fleet) -> None:
    """Same coordinator process, same node process, new seals."""
    assert fleet.coordinator is not None and fleet.coordinator.alive
    fleet.contributes("steady", after=fleet.length())
    said = fleet.coordinator.err.read_text()
    assert "Traceback" not in said, said


NONSENSE = {
    "noise": os.urandom(100_000),
    "zeros": bytes(100_000),
    "an endless head": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_on_both_ports(training: Fleet, kind: str) -> None:
    for port in (training.control_port, training.blob_port):
        plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        plain.sendall(NONSENSE[kind])
        plain.close()
        sock = _raw(training, port)
        if NONSENSE[kind]:
            _answer(sock, NONSENSE[kind] + b"\r\n\r\n")
        sock.close()
    _goes_on(training)


def test_wrong_requests_on_the_blob_port(training: Fleet) -> None:
    path = f"/{training.run}/blobs/{'ab' * 32}"
    requests = {
        f"PUT {path}/chunks HTTP/1.1\r\nContent-Length: {1 << 40}\r\n\r\n": b"413",
        f"PUT {path}/chunks HTTP/1.1\r\nContent-Length: 8\r\n\r\n12345678": b"401",
        f"PUT {path}/chunks HTTP/1.1\r\nContent-Length: -8\r\n\r\n": b"400",
        f"GET {path} HTTP/1.1\r\nRange: bytes=0-{1 << 40}\r\nConnection: close\r\n\r\n": b"413",
        f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n": b"404",
        "GET /../../key HTTP/1.1\r\nConnection: close\r\n\r\n": b"404",
    }
    for request, status in requests.items():
        said = _answer(_raw(training, training.blob_port), request.encode())
        assert said.split(b" ")[1:2] == [status], (request, said)
    _goes_on(training)


def _control(fleet: Fleet, reply: Callable[[Challenge], list[bytes | str]]) -> list[bytes]:
    """Open a control channel, answer its challenge with these frames, and hear what comes back."""

    async def speak() -> list[bytes]:
        heard: list[bytes] = []
        context, url = client_context(coordinator), f"wss://127.0.0.1:{fleet.control_port}/control"
        async with asyncio.timeout(TIMEOUT_S), connect(url, ssl=context, proxy=None, compression=None) as ws:
            challenge = decode(await ws.recv(decode=False))
            assert isinstance(challenge, Challenge)
            try:
                for frame in reply(challenge):
                    if frame == WAIT:
                        while not (heard and isinstance(decode(heard[-1]), Welcome)):
                            heard.append(await ws.recv(decode=False))
                    else:
                        await ws.send(frame)
                while True:
                    heard.append(await ws.recv(decode=False))
            except WebSocketException:
                return heard

    coordinator = fleet.coordinator_id()
    return asyncio.run(speak())


FRAMES: dict[str, list[bytes | str]] = {
    "garbled": [os.urandom(1000)],
    "deep": [b"\x91" * 100_000],
    "text": ["hello"],
    "too large": [bytes(MAX_FRAME_BYTES + 1)],
    "out of turn": [encode(Refuse(code="SH-JOIN-02", cause="no", next_step="no"))],
}


@pytest.mark.parametrize("kind", FRAMES)
def test_wrong_frames_instead_of_a_hello(training: Fleet, kind: str) -> None:
    heard = [decode(frame) for frame in _control(training, lambda _: FRAMES[kind])]
    assert all(isinstance(message, Refuse) and message.code == "SH-WIRE-01" for message in heard)
    _goes_on(training)


def _hello(fleet: Fleet, identity: Identity, challenge: Challenge, protocol: int = PROTOCOL) -> Hello:
    proof = Proof(run=fleet.run, coordinator=challenge.coordinator, nonce=challenge.nonce)
    return Hello(
        protocol=protocol,
        run=fleet.run,
        public=identity.public,
        token=read_ticket(fleet.ticket).token,
        name="stranger",
        address="",
        length=0,
        proof=sign(identity, proof),
    )


@pytest.mark.parametrize("known", [True, False], ids=["a message we know", "one we do not"])
def test_a_node_of_another_version_is_told_so(training: Fleet, known: bool) -> None:
    identity = Identity.generate()

    def frames(challenge: Challenge) -> list[bytes | str]:
        hello = _hello(training, identity, challenge)  # Only the frame tells that it is another version's.
        body = msgspec.to_builtins(hello, builtin_types=(bytes,)) if known else {"type": "greeting"}
        return [msgspec.msgpack.encode([PROTOCOL + 1, body])]

    heard = [decode(frame) for frame in _control(training, frames)]
    assert [message.code for message in heard if isinstance(message, Refuse)] == ["SH-JOIN-06"]
    assert len(heard) == 1
    _goes_on(training)


def test_a_member_who_turns_to_nonsense_is_cut_off(training: Fleet) -> None:
    identity = Identity.generate()
    heard = _control(
        training, lambda challenge: [encode(_hello(training, identity, challenge)), WAIT, os.urandom(5000)]
    )
    assert any(isinstance(decode(frame), Welcome) for frame in heard)
    _goes_on(training)
