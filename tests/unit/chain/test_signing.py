"""Hashes, addresses, encodings and keys against published examples and against themselves."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.chain.abi import AbiError, Type, decode, encode
from shoal.chain.contracts import shipped
from shoal.chain.keccak import keccak256
from shoal.chain.keys import load_account
from shoal.chain.merkle import make_tree
from shoal.chain.signing import Account, read_address, rlp, to_checksum

# The example of the Web3 Secret Storage Definition.
SECRET = bytes.fromhex("7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d")
KEYSTORE = {
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
        "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
        "kdf": "pbkdf2",
        "kdfparams": {
            "c": 262144,
            "dklen": 32,
            "prf": "hmac-sha256",
            "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
        },
        "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
    },
    "version": 3,
}


NEEDED_OF_REWARDS = (
    "createJob",
    "submitContribution",
    "submitContributions",
    "submitEpochRoot",
    "claim",
    "claimMany",
    "redeemVoucher",
    "calculateRewards",
    "distributePayments",
    "getNodeMetrics",
    "getJob",
    "disputeEpoch",
    "resolveDispute",
    "closeJob",
    "prepareRing",
    "resolveByQuorum",
    "proveDecrease",
)
NEEDED_OF_REGISTRY = (
    "registerNode",
    "requestUnstake",
    "withdrawStake",
    "proposeSlash",
    "disputeSlash",
    "resolveSlash",
    "executeSlash",
)


def code(call: Any) -> str:
    with pytest.raises(ShoalError) as caught:
        call()
    assert "secret" not in str(caught.value) or "key" in str(caught.value)
    return caught.value.code


def test_keccak_is_not_sha3() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


def test_addresses_have_their_capitals() -> None:
    for address in (
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    ):
        assert to_checksum(address.lower()) == address == read_address(address)
        assert read_address("0x" + address[2:].upper()) == address
        swapped = "0x" + address[2:].swapcase()
        assert code(lambda swapped=swapped: read_address(swapped)) == "SH-CHAIN-03"
    for wrong in ("", "0x", "0x12", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x" + "g" * 40):
        assert code(lambda wrong=wrong: read_address(wrong)) == "SH-CHAIN-03"


def test_a_known_key_has_its_known_address_and_shows_nothing() -> None:
    first = Account(bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))
    assert first.address == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert "ac0974" not in repr(first)
    for wrong in (b"", b"\0" * 32, b"\xff" * 32, b"\1" * 31):
        assert code(lambda wrong=wrong: Account(wrong)) == "SH-CHAIN-02"


def test_length_prefixes() -> None:
    assert rlp(0) == b"\x80" and rlp(15) == b"\x0f" and rlp(1024) == b"\x82\x04\x00"
    assert rlp(b"dog") == b"\x83dog" and rlp([b"cat", b"dog"]) == b"\xc8\x83cat\x83dog"
    assert rlp(b"a" * 56)[:2] == b"\xb8\x38" and rlp([[], [[]]]) == b"\xc3\xc0\xc1\xc0"


def test_a_keystore_opens_with_its_password_only(tmp_path: Path) -> None:
    path = tmp_path / "keystore.json"
    path.write_text(json.dumps(KEYSTORE))
    opened = load_account(path, {"SHOAL_CHAIN_PASSWORD": "testpassword"})
    assert opened.address == Account(SECRET).address
    assert code(lambda: load_account(path, {"SHOAL_CHAIN_PASSWORD": "wrong"})) == "SH-CHAIN-02"
    for text in ("", "{", "{}", json.dumps({"crypto": {**KEYSTORE["crypto"], "kdf": "scrypt"}})):
        path.write_text(text)
        assert code(lambda: load_account(path, {})) == "SH-CHAIN-02"
    assert code(lambda: load_account(tmp_path / "none", {})) == "SH-CHAIN-02"


def test_a_key_in_the_environment() -> None:
    assert load_account(None, {"SHOAL_CHAIN_KEY": "0x" + SECRET.hex()}).address == Account(SECRET).address
    assert code(lambda: load_account(None, {})) == "SH-CHAIN-02"
    assert code(lambda: load_account(None, {"SHOAL_CHAIN_KEY": "zz"})) == "SH-CHAIN-02"


VALUES: dict[str, Any] = {
    "uint256": st.integers(0, 2**256 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int128": st.integers(-(2**127), 2**127 - 1),
    "bool": st.booleans(),
    "bytes32": st.binary(min_size=32, max_size=32),
    "bytes": st.binary(max_size=100),
    "string": st.text(max_size=40),
    "address": st.binary(min_size=20, max_size=20).map(lambda b: "0x" + b.hex()),
    "uint64[]": st.lists(st.integers(0, 2**64 - 1), max_size=5),
    "bytes[]": st.lists(st.binary(max_size=40), max_size=4),
    "bytes32[2]": st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=2),
}


@given(st.data())
def test_what_is_encoded_is_decoded(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6))
    types = [Type(name) for name in names]
    values = tuple(data.draw(VALUES[name]) for name in names)
    assert decode(types, encode(types, values)) == values
    inside = Type("tuple[]", tuple(types))
    assert decode([inside], encode([inside], [[values, values]])) == ([values, values],)


@given(st.binary(max_size=400), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
def test_hostile_bytes_are_decoded_or_refused(data: bytes, names: list[str]) -> None:
    with contextlib.suppress(AbiError):
        decode([Type(name) for name in names], data)


@pytest.mark.parametrize(
    ("name", "value"),
    [("uint8", 256), ("uint8", -1), ("uint8", "1"), ("address", "0x12"), ("bytes32", b""), ("odd", 1)],
)
def test_values_that_do_not_fit_are_refused(name: str, value: Any) -> None:
    with pytest.raises(AbiError):
        encode([Type(name)], [value])
    with pytest.raises(AbiError):
        encode([Type("uint8[2]")], [[1]])


@given(st.dictionaries(st.integers(1, 10**9), st.integers(1, 10**30), min_size=1, max_size=30))
def test_every_leaf_has_a_proof(amounts: dict[int, int]) -> None:
    by_address = {f"0x{number:040x}": amount for number, amount in amounts.items()}
    tree = make_tree(5, by_address)
    for address in by_address:
        node = tree.levels[0][tree.places[address]]
        for beside in tree.proof(address):
            node = keccak256(min(node, beside) + max(node, beside))
        assert node == tree.root


def test_the_shipped_contracts_have_what_clients_call() -> None:
    rewards, registry = shipped("TrainingRewards"), shipped("NodeRegistry")
    assert set(NEEDED_OF_REWARDS) <= rewards.functions.keys()
    assert set(NEEDED_OF_REGISTRY) <= registry.functions.keys()
    # The deployed code must fit a block's limit for contracts.
    assert len(rewards.bytecode) < 24_576 and len(registry.bytecode) < 24_576
    assert rewards.refusal(b"") == "no reason given" and rewards.refusal(b"\1\2\3\4").startswith("0x")
