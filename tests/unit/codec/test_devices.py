"""What a GPU encodes and decodes is what the CPU does, to the bit."""

import pytest
import torch

from shoal.codec import CHUNK, CODECS
from shoal.codec.base import decode_whole, ranges
from shoal.codec.feedback import encode_with_feedback

SAME_EVERYWHERE = sorted(set(CODECS) - {"powersgd"})
"""Encoding to low rank takes matrix products, and says so."""
on_each = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
"""Where there is no GPU this compares the CPU with itself."""


def values_of(numel: int) -> torch.Tensor:
    """Sizes from subnormal to large, zeros of both signs, and chunks that are all alike."""
    random = torch.Generator().manual_seed(numel)
    values = torch.randn(numel, generator=random)
    values *= (
        torch.exp(20 * torch.randn(-(-numel // 512), 1, generator=random)).expand(-1, 512).reshape(-1)[:numel]
    )
    values[torch.rand(numel, generator=random) < 0.1] = 0.0
    values[torch.rand(numel, generator=random) < 0.1] = -0.0
    return values.clamp_(-6e4, 6e4)


@on_each
@pytest.mark.parametrize("kind", SAME_EVERYWHERE)
@pytest.mark.parametrize("numel", [1, 300, 5000, CHUNK + 1, 700_001])
def test_a_device_encodes_to_the_same_bytes(kind: str, numel: int, device: str) -> None:
    values, codec = values_of(numel), CODECS[kind]()
    payload = codec.encode(values, 3)
    assert codec.encode(values.to(device), 3) == payload
    source = codec.open(memoryview(payload), numel)
    assert source is not None
    out = torch.empty(numel, device=device)
    for start, stop in ranges(source, numel, out.device):
        source.decode(start, stop, 0.3333333432674408, out[start:stop])
    expected = torch.empty(numel)
    for start, stop in ranges(source, numel, expected.device):
        source.decode(start, stop, 0.3333333432674408, expected[start:stop])
    assert torch.equal(out.cpu().view(torch.int32), expected.view(torch.int32))


@on_each
@pytest.mark.parametrize("kind", SAME_EVERYWHERE)
def test_feedback_on_a_device_leaves_the_same(kind: str, device: str) -> None:
    update, old = values_of(100_000) * 0.5, values_of(100_000) * 0.1
    payload, left = encode_with_feedback(CODECS[kind](), update, old, 1, 0.9)
    on_device = encode_with_feedback(CODECS[kind](), update.to(device), old.to(device), 1, 0.9)
    assert on_device[0] == payload and torch.equal(on_device[1].cpu(), left)


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_a_source_that_takes_longer_ranges_gives_the_same_bits(kind: str) -> None:
    numel = 3 * CHUNK + 77
    source = CODECS[kind]().open(memoryview(CODECS[kind]().encode(values_of(numel))), numel)
    assert source is not None
    out = torch.empty(numel)
    for start, stop in ranges(source, numel, torch.device("meta")):
        source.decode(start, stop, 1.0, out[start:stop])
    assert torch.equal(out.view(torch.int32), decode_whole(source, numel).view(torch.int32))
