from dataclasses import replace

import msgspec
import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import make_layout
from shoal.replica.state import State, decode_state, encode_state, initial_state, state_hash

LAYOUT = make_layout([("a", (300_000,)), ("b", (7,))], 2)


def _state(layout=LAYOUT, seed: int = 1) -> State:  # type: ignore[no-untyped-def]
    params = torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed))
    state = initial_state(layout, params, ("momentum", "age"))
    state.slots["age"].add_(2)
    return state


def test_a_state_reads_as_it_was_written() -> None:
    state = _state()
    again = decode_state(encode_state(state), LAYOUT)
    assert torch.equal(again.params, state.params)
    assert {name: v.tolist()[:1] for name, v in again.slots.items()} == {"momentum": [0.0], "age": [2.0]}
    assert state_hash(again) == state_hash(state) and encode_state(again) == encode_state(state)


def test_the_hash_knows_every_bit_every_slot_and_the_cut() -> None:
    state = _state()
    hashes = {state_hash(state)}
    for vector in (state.params, *state.slots.values()):
        for place in (0, 262_143, 262_144, 300_006):
            bent = vector.view(torch.int32)
            bent[place] ^= 1
            hashes.add(state_hash(state))
            bent[place] ^= 1
    assert len(hashes) == 13 and state_hash(state) in hashes
    whole = make_layout([("a", (300_000,)), ("b", (7,))], 1)
    hashes.add(state_hash(State(whole, state.params, state.slots)))
    hashes.add(state_hash(State(LAYOUT, state.params, {})))
    swapped = {"momentum": state.slots["age"], "age": state.slots["momentum"]}
    hashes.add(state_hash(State(LAYOUT, state.params, swapped)))
    assert len(hashes) == 16


def test_the_order_of_slots_does_not_matter() -> None:
    state = _state()
    turned = State(LAYOUT, state.params, dict(reversed(state.slots.items())))
    assert state_hash(turned) == state_hash(state) and encode_state(turned) == encode_state(state)


def test_counts_of_steps_are_part_of_the_state() -> None:
    state = _state()
    counted = [replace(state, steps=steps) for steps in ((), (1, 0), (0, 1), (1, 1))]
    assert len({state_hash(one) for one in counted}) == 4 and len({encode_state(one) for one in counted}) == 4
    for one in counted:
        again = decode_state(encode_state(one), LAYOUT)
        assert again.steps == one.steps and state_hash(again) == state_hash(one)
    assert [counted[1].taken(0), counted[1].taken(1), state.taken(1)] == [1, 0, 0]


def test_the_first_state_is_a_copy() -> None:
    params = torch.ones(LAYOUT.numel)
    state = initial_state(LAYOUT, params, ())
    params.zero_()
    assert float(state.params[0]) == 1.0


SMALL = make_layout([("a", (5,))])
GOOD = encode_state(_state(SMALL))
MAGIC = b"shoal-state-1\n"


def _header(header: bytes) -> bytes:
    return MAGIC + len(header).to_bytes(4, "little") + header


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"noise",
        MAGIC,
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:30],
        _header(b"\xc1") + bytes(60),
        _header(msgspec.msgpack.encode({"numel": 6, "slots": []})) + bytes(24),
        _header(msgspec.msgpack.encode({"numel": -5, "slots": []})) + bytes(20),
        _header(msgspec.msgpack.encode({"numel": 5, "slots": [1]})) + bytes(40),
        _header(b"\x82\xa5numel\x05\xa5slots\x91\xa2\xff\xfe") + bytes(40),
        _header(b"\x83\xa5numel\x05\xa5slots\x90\xa1x" + b"\x91" * 200_000 + b"\x90") + bytes(20),
        MAGIC + b"\xff\xff\xff\xff",
        _header(msgspec.msgpack.encode({"numel": 5, "slots": [], "steps": [1, 1]})) + bytes(20),
        _header(msgspec.msgpack.encode({"numel": 5, "slots": [], "steps": [0]})) + bytes(20),
        _header(msgspec.msgpack.encode({"numel": 5, "slots": [], "steps": [-1]})) + bytes(20),
        _header(msgspec.msgpack.encode({"numel": 5, "slots": [], "steps": [2**63]})) + bytes(20),
    ],
)
def test_what_is_no_state_is_told_so(data: bytes) -> None:
    with pytest.raises(ShoalError, match="SH-BLOB-02"):
        decode_state(data, SMALL)


def test_a_state_of_another_model_is_told_so() -> None:
    with pytest.raises(ShoalError, match="does not fit the model"):
        decode_state(GOOD, LAYOUT)


def test_one_slot_named_twice_is_no_state() -> None:
    data = _header(msgspec.msgpack.encode({"numel": 5, "slots": ["m", "m"]})) + bytes(60)
    with pytest.raises(ShoalError, match="SH-BLOB-02"):
        decode_state(data, SMALL)
