import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shoal.base.errors import ShoalError
from shoal.data.tokeniser import (
    END_OF_TEXT,
    ByteTokeniser,
    LearnedTokeniser,
    load_tokeniser,
    parse_huggingface,
    train_bpe,
)

DOCUMENTS = [b"def fold(state, seal):\n    return state\n" * 20, "naïve über 数据\n".encode() * 20]


@pytest.fixture(scope="module")
def learned() -> LearnedTokeniser:
    return train_bpe(DOCUMENTS, 300)


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    tokeniser = ByteTokeniser()
    ids = tokeniser.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokeniser.decode(ids) == text


@given(st.binary())
def test_the_huggingface_byte_tokeniser_is_the_same(data: bytes) -> None:
    text = data.decode(errors="replace")
    exported = Tokenizer.from_str(ByteTokeniser().to_huggingface())
    ids = exported.encode(text).ids
    assert ids == list(text.encode())
    assert exported.decode(ids) == text


def test_every_byte_has_its_own_id() -> None:
    exported = Tokenizer.from_str(ByteTokeniser().to_huggingface())
    assert exported.get_vocab_size() == 256
    assert sorted(exported.get_vocab().values()) == list(range(256))


@given(text=st.text())
def test_learned_round_trip(learned: LearnedTokeniser, text: str) -> None:
    assert learned.decode(learned.encode(text)) == text


def test_learned_compresses_and_marks_ends(learned: LearnedTokeniser) -> None:
    assert 257 < learned.vocab_size <= 300 and learned.dtype == "uint16"
    ids = learned.encode_documents(DOCUMENTS)
    assert ids.dtype == np.uint16 and len(ids) < sum(map(len, DOCUMENTS)) / 2
    assert learned.decode(ids) == END_OF_TEXT.join(d.decode() for d in DOCUMENTS) + END_OF_TEXT


def test_byte_documents_are_joined_by_newlines() -> None:
    assert ByteTokeniser().encode_documents([b"a", b"\xff"]).tobytes() == b"a\n\xff"


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_save_and_load(kind: str, learned: LearnedTokeniser) -> None:
    tokeniser = ByteTokeniser() if kind == "byte" else learned
    again = load_tokeniser(tokeniser.save())
    assert again.save() == tokeniser.save() and again.vocab_size == tokeniser.vocab_size
    assert again.encode("return 数").tolist() == tokeniser.encode("return 数").tolist()


def test_training_is_the_same_in_another_process(learned: LearnedTokeniser) -> None:
    code = (
        "import sys; from shoal.data.tokeniser import train_bpe;"
        f"sys.stdout.buffer.write(train_bpe({DOCUMENTS!r}, 300).save())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "5"}, capture_output=True, check=True
    )
    assert done.stdout == learned.save()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind": "word"}', b'{"kind": "tokenizers", "body": "{}"}'])
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        load_tokeniser(data)


def test_malformed_json_is_refused() -> None:
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        parse_huggingface("not a tokenizer")


def test_learning_needs_utf8() -> None:
    with pytest.raises(ShoalError, match="SH-DATA-03"):
        train_bpe([b"\xff\xfe"], 300)
