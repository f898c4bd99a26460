import base64

import msgspec
import pytest

from shoal.base.errors import ShoalError
from shoal.wire.ticket import PREFIX, Ticket, read_ticket, show_ticket

TICKET = Ticket("c" * 40, ("host:1", "[::1]:2"), "r" * 32, "secret")  # type: ignore[arg-type]


def _wrapped(raw: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_ticket_reads_as_it_was_shown() -> None:
    text = show_ticket(TICKET)
    assert read_ticket(text) == TICKET and read_ticket(f"  {text}\n") == TICKET
    assert "=" not in text and text.startswith(PREFIX)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        PREFIX,
        show_ticket(TICKET)[:-5],
        show_ticket(TICKET)[len(PREFIX) :],
        PREFIX + "!!!!",
        PREFIX + "日本",
        PREFIX + "A",
        _wrapped(b"\xc1"),
        _wrapped(msgspec.msgpack.encode([1, 2, 3, 4])),
        _wrapped(msgspec.msgpack.encode(["a", ["b"], "c"])),
        _wrapped(b"\x94\xa2\xff\xff\x90\xa1r\xa1t"),
        _wrapped(b"\x95\xa1c\x90\xa1r\xa1t" + b"\x91" * 50_000 + b"\x90"),
    ],
)
def test_what_is_no_ticket_is_told_so(text: str) -> None:
    with pytest.raises(ShoalError) as caught:
        read_ticket(text)
    assert caught.value.code == "SH-JOIN-01" and "shoal serve" in caught.value.next_step
