import msgspec

from shoal.runlog.entries import Attestation, Head, Receipt
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, digest, open_signed, parse, parse_again, sign

ONE, TWO = Identity(b"1" * 32), Identity(b"2" * 32)
RECEIPT = Receipt(run="r", holder=ONE.node, blob="b" * 64, size_bytes=1)  # type: ignore[arg-type]


def test_a_statement_opens_for_its_signer_only() -> None:
    signed = sign(ONE, RECEIPT)
    assert open_signed(signed, Receipt, ONE.public) == RECEIPT
    assert open_signed(signed, Receipt, TWO.public) is None
    assert open_signed(signed, Receipt, b"") is None


def test_a_statement_does_not_pass_for_another_kind() -> None:
    word = Attestation(run="r", node=ONE.node, at=Head(0, ""), state="s")  # type: ignore[arg-type]
    assert open_signed(sign(ONE, word), Receipt, ONE.public) is None
    forged = Signed(sign(ONE, RECEIPT).payload, ONE.sign("Attestation", sign(ONE, RECEIPT).payload))
    assert open_signed(forged, Attestation, ONE.public) is None
    assert open_signed(forged, Receipt, ONE.public) is None


def test_parse_refuses_what_is_not_the_kind() -> None:
    raw = msgspec.msgpack.encode(RECEIPT)
    assert parse(raw, Receipt) == RECEIPT
    for bad in (b"", raw[:-1], raw + b"\0", b"\xc1", b"\x80", msgspec.msgpack.encode([1, 2])):
        assert parse(bad, Receipt) is None
    assert parse(raw.replace(b"bbbb", b"b\xff\xffb", 1), Receipt) is None, "not UTF-8"


def test_deep_nesting_is_refused_however_deep_the_stack() -> None:
    nested = b"\x91" * 5000 + b"\x90"
    assert parse(nested, Signed) is None
    extra = b"\x93" + msgspec.msgpack.encode(b"p") + msgspec.msgpack.encode(b"s") + b"\x91" * 10 + b"\x90"
    assert parse(extra, Signed) is None, "an unknown third part"


def test_digest_is_hex_of_32_bytes() -> None:
    assert len(digest(b"")) == 64 and digest(b"a") != digest(b"b")


def test_what_is_met_again_is_read_once_and_only_as_what_it_is() -> None:
    raw = msgspec.msgpack.encode(RECEIPT)
    first = parse_again(raw, Receipt)
    assert first == RECEIPT and parse_again(bytes(bytearray(raw)), Receipt) is first
    assert parse_again(raw, Attestation) is None and parse_again(raw[:-1], Receipt) is None
