import torch

from shoal.codec import CODECS
from shoal.codec.feedback import encode_with_feedback


def test_what_is_lost_now_arrives_later() -> None:
    codec, update = CODECS["int8"](), torch.linspace(-1, 1, 512) ** 3
    total, residual = torch.zeros(512), torch.zeros(512)
    for _ in range(50):
        payload, residual = encode_with_feedback(codec, update, residual)
        source = codec.open(memoryview(payload), 512)
        assert source is not None
        out = torch.empty(512)
        source.decode(0, 512, 1.0, out)
        total += out
    assert torch.allclose(total / 50, update, atol=2e-4)


def test_a_lossless_codec_leaves_nothing() -> None:
    update = torch.randn(100, generator=torch.Generator().manual_seed(2))
    payload, residual = encode_with_feedback(CODECS["none"](), update, None)
    assert torch.count_nonzero(residual) == 0 and len(payload) == 400


def test_decay_forgets_a_share_of_what_is_left() -> None:
    update, old = torch.linspace(-1, 1, 512) ** 3, torch.full((512,), 0.01)
    payload, whole = encode_with_feedback(CODECS["two-bit"](), update, old)
    same, half = encode_with_feedback(CODECS["two-bit"](), update, old, decay=0.5)
    assert payload == same and torch.equal(half, whole * 0.5)
    assert torch.count_nonzero(encode_with_feedback(CODECS["two-bit"](), update, old, decay=0.0)[1]) == 0


def test_neither_update_nor_residual_is_changed() -> None:
    update, old = torch.linspace(-1, 1, 512), torch.full((512,), 0.01)
    encode_with_feedback(CODECS["one-bit"](), update, old)
    encode_with_feedback(CODECS["one-bit"](), update, None)
    assert torch.equal(update, torch.linspace(-1, 1, 512)) and torch.equal(old, torch.full((512,), 0.01))
