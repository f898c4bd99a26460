"""A sample of the fuzzing; `python tests/fuzz/fuzz_codecs.py 1000000` runs as much as you like."""

import pytest
import torch

from shoal.codec import CODECS
from shoal.codec.base import Source

from .fuzz_codecs import Target, check, fuzz, largest_allocation, targets


def test_mutated_payloads_break_no_promise() -> None:
    tried, opened = fuzz(6000, seed=7)
    assert tried == 6000 and opened > 300, "mutations must not all be refused at the first byte"


def test_every_codec_is_a_target() -> None:
    assert {target.name.split()[0] for target in targets()} == set(CODECS)


def test_memory_stays_near_that_of_the_fragment() -> None:
    assert largest_allocation(2000, seed=3) < 1 << 20


class _Careless:
    """A codec that believes what it is given."""

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        return values.numpy().tobytes()

    def open(self, payload: memoryview, numel: int) -> Source | None:
        values = torch.frombuffer(bytearray(payload), dtype=torch.float32)

        class Opened:
            def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
                out.copy_(values[start:stop])

        return Opened()  # type: ignore[return-value]


def test_a_careless_codec_is_found_out() -> None:
    target = Target("careless", _Careless(), 2, ())
    with pytest.raises(AssertionError, match="not finite"):
        check(target, b"\xff" * 8)
    with pytest.raises(ValueError):
        check(target, b"\xff" * 7)
