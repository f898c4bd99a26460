"""The handshake, against coordinators of every kind."""

import asyncio
from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, RUN, STRANGER

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel
from shoal.base.ids import NodeId
from shoal.node.session import HANDSHAKE_S, Invitation, open_session
from shoal.wire.messages import (
    PROTOCOL,
    Beat,
    Challenge,
    Hello,
    Message,
    Proof,
    Refuse,
    Welcome,
    decode,
    encode,
)
from shoal.wire.signed import open_signed
from shoal.wire.versions import Speaking
from shoal.worlds.simulated.loop import SimLoop

A = NODES[0]
CHALLENGE = Challenge(protocol=PROTOCOL, coordinator=COORDINATOR.node, nonce=b"n" * 32)
WELCOME = Welcome(run=RUN, heartbeat_s=1.0, length=3)


class Script:
    """A channel to a coordinator that says these frames, whatever it hears."""

    def __init__(self, *frames: bytes | Message) -> None:
        self.frames = [frame if isinstance(frame, bytes) else encode(frame) for frame in frames]
        self.heard: list[Message] = []
        self.closed = False

    async def send(self, frame: bytes) -> None:
        self.heard.append(decode(frame))

    async def recv(self) -> bytes:
        if not self.frames:
            await asyncio.sleep(10 * HANDSHAKE_S)
            raise ChannelClosed("gone")
        return self.frames.pop(0)

    async def close(self) -> None:
        self.closed = True


class Lines:
    """A host whose addresses are scripts; None does not answer."""

    def __init__(self, **lines: Script | None) -> None:
        self.lines = lines

    async def connect(self, address: str, node: NodeId) -> Script:
        line = self.lines[address]
        if line is None:
            raise ChannelClosed(f"{address} does not answer")
        return line


def _open(*addresses: str, **lines: Script | None) -> Any:
    invitation = Invitation(
        coordinator=COORDINATOR.node, addresses=addresses or tuple(lines), run=RUN, token="t", name="ann"
    )

    async def main() -> Any:
        host: Any = Lines(**lines)
        return await open_session(host, A, invitation, blob_address="h:1", length=7)

    return SimLoop(1, event_budget=1000).run(main())


def _inside(channel: Channel) -> object:
    """The channel beneath the one that speaks the version that was agreed on."""
    assert isinstance(channel, Speaking) and channel.version == PROTOCOL
    return channel.inner


def test_a_node_proves_itself_and_is_welcomed() -> None:
    line = Script(CHALLENGE, WELCOME)
    channel, welcome = _open(one=line)
    assert _inside(channel) is line and welcome == WELCOME and not line.closed
    hello = line.heard[0]
    assert isinstance(hello, Hello) and (hello.token, hello.name, hello.length) == ("t", "ann", 7)
    proof = open_signed(hello.proof, Proof, A.public)
    assert proof == Proof(run=RUN, coordinator=COORDINATOR.node, nonce=CHALLENGE.nonce)


def test_the_proof_is_for_the_coordinator_of_the_ticket_only() -> None:
    """A stranger in between gets a proof that is worth nothing elsewhere."""
    line = Script(Challenge(protocol=PROTOCOL, coordinator=STRANGER.node, nonce=b"m" * 32), WELCOME)
    _open(one=line)
    hello = line.heard[0]
    assert isinstance(hello, Hello)
    proof = open_signed(hello.proof, Proof, A.public)
    assert proof is not None and proof.coordinator == COORDINATOR.node


def test_other_messages_before_the_welcome_are_passed_over() -> None:
    assert _open(one=Script(CHALLENGE, Beat(length=1), WELCOME))[1] == WELCOME


def test_the_next_address_is_tried() -> None:
    silent, rude, good = Script(), Script(Beat(length=1)), Script(CHALLENGE, WELCOME)
    channel, _ = _open(none=None, silent=silent, rude=rude, good=good)
    assert _inside(channel) is good and silent.closed and rude.closed


@pytest.mark.parametrize(
    "line",
    [None, Script(), Script(CHALLENGE), Script(WELCOME)],
    ids=["no answer", "silence", "silence after the hello", "no challenge"],
)
def test_what_may_work_later_is_a_closed_channel(line: Script | None) -> None:
    with pytest.raises(ChannelClosed):
        _open(one=line)


def test_a_refusal_is_told_in_the_coordinators_words() -> None:
    line = Script(CHALLENGE, Refuse(code="SH-JOIN-03", cause="expired", next_step="ask"))
    with pytest.raises(ShoalError) as caught:
        _open(one=line)
    assert (caught.value.code, caught.value.cause, caught.value.next_step) == ("SH-JOIN-03", "expired", "ask")


def test_a_refusal_with_a_code_of_a_later_version_is_still_an_error_for_people() -> None:
    line = Script(CHALLENGE, Refuse(code="SH-JOIN-99", cause="too cold", next_step="dress up"))
    with pytest.raises(ShoalError, match="too cold"):
        _open(one=line)


def test_another_version_is_told_as_such() -> None:
    later = Script(Challenge(protocol=PROTOCOL + 1, coordinator=COORDINATOR.node, nonce=b""))
    frame = bytearray(encode(CHALLENGE))
    frame[1] = PROTOCOL + 1
    for line in (later, Script(bytes(frame))):
        with pytest.raises(ShoalError, match="SH-JOIN-06"):
            _open(one=line)


def test_garbage_is_told_as_such() -> None:
    with pytest.raises(ShoalError, match="SH-WIRE-01"):
        _open(one=Script(b"\xc1"))


def test_a_ticket_without_addresses() -> None:
    invitation = Invitation(coordinator=COORDINATOR.node, addresses=(), run=RUN, token="t")

    async def main() -> None:
        host: Any = Lines()
        await open_session(host, A, invitation, blob_address="", length=0)

    with pytest.raises(ChannelClosed, match="no address"):
        SimLoop(1, event_budget=1000).run(main())
