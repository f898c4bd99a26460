import msgspec
import pytest
import torch

from shoal.base.layout import make_layout
from shoal.codec import CODECS
from shoal.replica.update import encode_update, open_update

LAYOUT = make_layout([("a", (3,)), ("b", (3,)), ("c", (3,))], 3)
NONE = CODECS["none"]()
PARTS = [(i, NONE.encode(torch.full((f.numel,), float(i + 1)))) for i, f in enumerate(LAYOUT.fragments)]
MAGIC = b"shoal-update-1\n"


def _with_header(header: bytes, body: bytes) -> bytes:
    return MAGIC + len(header).to_bytes(4, "little") + header + body


def test_each_fragment_comes_back() -> None:
    sources = open_update(encode_update(PARTS), LAYOUT, (0, 1, 2), NONE)
    assert sources is not None and list(sources) == [0, 1, 2]
    for index, fragment in enumerate(LAYOUT.fragments):
        out = torch.empty(fragment.numel)
        sources[index].decode(0, fragment.numel, 1.0, out)
        assert out.tolist() == [index + 1.0] * fragment.numel


def test_some_fragments_are_an_update_too() -> None:
    blob = encode_update([PARTS[0], PARTS[2]])
    assert open_update(blob, LAYOUT, (0, 2), NONE) is not None


@pytest.mark.parametrize("fragments", [(), (0,), (0, 1), (1, 0, 2), (0, 1, 2, 2), (0, 1, 3)])
def test_other_fragments_than_asked_are_void(fragments: tuple[int, ...]) -> None:
    assert open_update(encode_update(PARTS), LAYOUT, fragments, NONE) is None


WHOLE = encode_update(PARTS)
BODY = b"".join(payload for _, payload in PARTS)
HOSTILE = {
    "empty": b"",
    "magic only": MAGIC,
    "another magic": WHOLE.replace(b"update-1", b"update-2"),
    "one byte less": WHOLE[:-1],
    "one byte more": WHOLE + b"\0",
    "a header beyond the end": MAGIC + (2**32 - 1).to_bytes(4, "little") + BODY,
    "negative length": _with_header(msgspec.msgpack.encode([[(0, -12), (1, 12), (2, 12)]]), BODY),
    "huge length": _with_header(msgspec.msgpack.encode([[(0, 2**63), (1, 12), (2, 12)]]), BODY),
    "lengths that overlap": _with_header(msgspec.msgpack.encode([[(0, 12), (1, 12), (2, 8)]]), BODY),
    "not a header": _with_header(b"\xc1", BODY),
    "text in the header": _with_header(msgspec.msgpack.encode([[("0", 12), (1, 12), (2, 12)]]), BODY),
    "floats in the header": _with_header(msgspec.msgpack.encode([[(0.5, 12), (1, 12), (2, 12)]]), BODY),
    "NaN": WHOLE[:-4] + b"\xff\xff\xff\xff",
    "infinity": WHOLE[:-4] + b"\x00\x00\x80\x7f",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bytes_are_void(case: str) -> None:
    assert open_update(HOSTILE[case], LAYOUT, (0, 1, 2), NONE) is None


@pytest.mark.parametrize("depth", [0, 3, 700, 900, 200_000])
def test_what_a_stack_holds_decides_nothing(depth: int) -> None:
    """A header with something deeply nested behind it must be void everywhere, not where the stack is short."""
    header = b"\x92" + msgspec.msgpack.encode([(0, 12), (1, 12), (2, 12)]) + b"\x91" * depth + b"\x90"
    blob = _with_header(header, BODY)

    def opened(stack: int) -> object:
        return opened(stack - 1) if stack else open_update(blob, LAYOUT, (0, 1, 2), NONE)

    assert opened(0) is None and opened(500) is None
