"""Text to token ids and back, one token per byte or by a learned byte-level vocabulary.

In flow documents; out flow id arrays, and the tokeniser itself as bytes for a blob. Invariant: a tokeniser
loaded from its saved bytes gives the same ids on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shoal.base.errors import ShoalError

Ids = npt.NDArray[Any]
END_OF_TEXT = "<|endoftext|>"
BATCH_DOCUMENTS = 256


class Tokeniser(Protocol):
    @property
    def vocab_size(self) -> int: ...
    @property
    def dtype(self) -> Literal["uint8", "uint16", "uint32"]:
        """The smallest type that holds every id."""

    def encode(self, text: str) -> Ids: ...
    def encode_documents(self, documents: Iterable[bytes]) -> Ids:
        """All documents as one stream, separated in the tokeniser's own way."""

    def decode(self, ids: Sequence[int] | Ids) -> str: ...
    def save(self) -> bytes: ...
    def to_huggingface(self) -> str:
        """The same tokeniser as the text of a `tokenizer.json`."""


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["byte", "tokenizers"]
    body: str = ""


class ByteTokeniser:
    """Ids are bytes. Documents are separated by a newline, since no id is left for a mark."""

    vocab_size = 256
    dtype: Literal["uint8"] = "uint8"

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def encode_documents(self, documents: Iterable[bytes]) -> Ids:
        return np.frombuffer(b"\n".join(documents), dtype=np.uint8)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return bytes(int(token) for token in ids).decode(errors="replace")

    def save(self) -> bytes:
        return msgspec.json.encode(_Saved("byte"))

    def to_huggingface(self) -> str:
        """A byte-level model without merges, whose id for every byte is that byte."""
        model = models.BPE(vocab={char: byte for byte, char in enumerate(_byte_chars())}, merges=[])
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return str(tokenizer.to_str())


class LearnedTokeniser:
    """A `tokenizers` model. Documents end with `<|endoftext|>` where the vocabulary has it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = int(tokenizer.get_vocab_size(with_added_tokens=True))
        self.dtype: Literal["uint16", "uint32"] = "uint16" if self.vocab_size <= 1 << 16 else "uint32"
        self._end: int | None = tokenizer.token_to_id(END_OF_TEXT)

    def encode(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=self.dtype)

    def encode_documents(self, documents: Iterable[bytes]) -> Ids:
        parts = [self._encode_batch(batch) for batch in _batches(map(_text, documents))]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)

    def _encode_batch(self, texts: list[str]) -> Ids:
        ids: list[int] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids.extend(encoding.ids)
            if self._end is not None:
                ids.append(self._end)
        return np.array(ids, dtype=self.dtype)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=False))

    def save(self) -> bytes:
        return msgspec.json.encode(_Saved("tokenizers", self.to_huggingface()))

    def to_huggingface(self) -> str:
        return str(self._tokenizer.to_str())


def train_bpe(documents: Iterable[bytes], vocab_size: int) -> LearnedTokeniser:
    """Learn a byte-level vocabulary of at most `vocab_size` ids. The same documents give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=_byte_chars(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(_text, documents), trainer=trainer)
    return LearnedTokeniser(tokenizer)


def load_tokeniser(data: bytes) -> Tokeniser:
    """A tokeniser from its saved bytes. Raises SH-DATA-03 where they are not such."""
    try:
        saved = msgspec.json.decode(data, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    return ByteTokeniser() if saved.kind == "byte" else parse_huggingface(saved.body)


def parse_huggingface(text: str) -> LearnedTokeniser:
    """A tokeniser from the text of a `tokenizer.json`."""
    try:
        return LearnedTokeniser(Tokenizer.from_str(text))
    except Exception as error:  # the library raises bare Exception for anything it cannot parse
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ShoalError:
    return ShoalError("SH-DATA-03", f"the tokeniser cannot be read: {error}", "prepare the data again")


def _text(document: bytes) -> str:
    try:
        return document.decode()
    except UnicodeDecodeError as error:
        raise ShoalError(
            "SH-DATA-03", f"a document is not UTF-8: {error}", "convert it, or use the byte tokenizer"
        ) from error


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _byte_chars() -> list[str]:
    """The printable stand-in of every byte in byte-level tokenisers, by byte value.

    Printable Latin-1 stands for itself; every other byte takes the next character from U+0100 on.
    """
    spare = iter(range(256, 512))
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    itself = frozenset(shown)
    return [chr(byte if byte in itself else next(spare)) for byte in range(256)]
