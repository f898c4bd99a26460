import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import blake3
import msgspec
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from shoal.base.errors import ShoalError
from shoal.data.manifest import Manifest
from shoal.training.initial import fill_normal
from shoal.training.models import build_model, check_causal, draws_noise, head_of, loss_of
from shoal.training.pretrained import portable
from shoal.training.spec import GptSpec, ModelSpec, TransformersSpec

from .conftest import TINY, Run

SPEC: TypeAdapter[Any] = TypeAdapter(ModelSpec)
TOKENS = Manifest(kind="tokens", dtype="uint8", train=(), validation=(), context=16, vocab_size=256)
IMAGES = Manifest(kind="arrays", dtype="float32", train=(), validation=(), sample_shape=(1, 8, 8), classes=3)
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
TEXT_MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2},
    "gpt tied": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2, "tied": True},
    "gpt gelu": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2, "mlp": "gelu"},
    "llama": {"kind": "transformers", "architecture": "llama", "config": SMALL},
    "gpt2": {
        "kind": "transformers",
        "architecture": "gpt2",
        "config": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    },
    "gpt_neo": {
        "kind": "transformers",
        "architecture": "gpt_neo",
        "config": {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
        },
    },
}
IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp", "width": 16},
    "cnn": {"kind": "cnn", "channels": 8},
    "resnet": {"kind": "resnet", "channels": 8},
}
ALL = TEXT_MODELS | IMAGE_MODELS


def built(name: str, seed: int = 3) -> nn.Module:
    return build_model(SPEC.validate_python(ALL[name]), TOKENS if name in TEXT_MODELS else IMAGES, seed)


def fingerprint(model: nn.Module) -> str:
    hasher = blake3.blake3()
    for parameter in model.parameters():
        hasher.update(parameter.detach().numpy().tobytes())
    return hasher.hexdigest()


@pytest.mark.parametrize("name", ALL)
def test_the_seed_decides_the_bytes(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = fingerprint(built(name))
    assert torch.equal(before, torch.get_rng_state()), "the process's own randomness is left alone"
    torch.rand(5)
    assert fingerprint(built(name)) == first
    assert fingerprint(built(name, seed=4)) != first


@pytest.mark.parametrize("name", ALL)
def test_an_untrained_model_knows_nothing(name: str, text_run: Run, image_run: Run) -> None:
    run = text_run if name in TEXT_MODELS else image_run
    model = build_model(SPEC.validate_python(ALL[name]), run.manifest, 3)
    loss = loss_of(model, run.dataset.batch(np.arange(8)))
    choices = run.manifest.vocab_size or run.manifest.classes
    assert loss.shape == () and abs(loss.item() - np.log(choices)) < 1.0
    assert not draws_noise(model) and head_of(model) is not None


GOLDEN_GPT = "bff1fcf9b1da3e1e0f4516a05512d01ec953d032259e35c17bcde0c92cc4943b"


def test_golden_gpt_bytes() -> None:
    """Our own models start from the same bits everywhere: this hash holds on every machine."""
    assert fingerprint(built("gpt")) == GOLDEN_GPT


def test_the_same_bytes_in_another_process() -> None:
    names = ["gpt", "resnet", "llama"]
    code = f"from {__name__} import built, fingerprint\nfor n in {names!r}: print(fingerprint(built(n)))"
    root = Path(__file__).parents[__name__.count(".")]
    env = {**os.environ, "PYTHONHASHSEED": "31", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [fingerprint(built(name)) for name in names]


def test_first_values_are_bell_shaped() -> None:
    parameter = nn.Parameter(torch.empty(100, 1000))
    fill_normal(parameter, 1, "w", 0.5)
    values = parameter.detach()
    assert abs(values.mean().item()) < 0.01 and abs(values.std().item() - 0.5) < 0.01
    assert 0.66 < (values.abs() < 0.5).float().mean().item() < 0.70
    other = nn.Parameter(torch.empty(100, 1000))
    fill_normal(other, 1, "v", 0.5)
    assert abs(torch.corrcoef(torch.stack((values.flatten(), other.detach().flatten())))[0, 1].item()) < 0.02


def test_a_token_sees_only_what_came_before() -> None:
    model = built("gpt")
    ids = torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 10] ^= 1
    difference = (model(ids) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:10].max() == 0 and difference[10:].min() > 0


@pytest.mark.parametrize(("name", "manifest"), [("gpt", IMAGES), ("llama", IMAGES), ("cnn", TOKENS)])
def test_data_of_the_other_kind_is_refused(name: str, manifest: Manifest) -> None:
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        build_model(SPEC.validate_python(ALL[name]), manifest, 0)


@pytest.mark.parametrize(
    "spec",
    [
        GptSpec(context=8),
        TransformersSpec(kind="transformers", architecture="no-such-model"),
        TransformersSpec(kind="transformers", weights="/no/such/folder"),
        TransformersSpec(kind="transformers", config={**SMALL, "vocab_size": 100}),
        TransformersSpec(kind="transformers", config={**SMALL, "max_position_embeddings": 8}),
        TransformersSpec(kind="transformers", config={**SMALL, "num_attention_heads": "three"}),
        TransformersSpec(kind="transformers", architecture="gpt2", config={**SMALL, "n_positions": 8}),
    ],
)
def test_models_that_do_not_fit_the_data(spec: Any) -> None:
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        build_model(spec, TOKENS, 0)


@pytest.mark.parametrize(
    ("model", "manifest"),
    [
        ({"kind": "gpt", "layers": 256, "width": 1 << 16}, TOKENS),
        ({"kind": "gpt", "hidden": 10**13}, TOKENS),
        ({"kind": "gpt", "hidden": 10**20}, TOKENS),
        ({"kind": "gpt", "context": 10**12}, TOKENS),
        ({"kind": "mlp", "layers": 64, "width": 1 << 16}, IMAGES),
        ({"kind": "transformers", "config": {"hidden_size": 1 << 19, "num_hidden_layers": 1}}, TOKENS),
    ],
)
def test_a_model_that_no_memory_holds_is_refused_before_it_is_filled(
    model: dict[str, Any], manifest: Manifest
) -> None:
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        build_model(SPEC.validate_python(model), manifest, 0)


def test_what_an_architecture_calls_a_setting_is_heeded() -> None:
    config = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    model = build_model(TransformersSpec(kind="transformers", architecture="gpt2", config=config), TOKENS, 0)
    assert model.get_parameter("transformer.wpe.weight").shape == (64, 16)


def test_a_configurations_own_precision_does_not_make_the_model() -> None:
    spec = TransformersSpec(kind="transformers", config={**SMALL, "dtype": "bfloat16"})
    assert {parameter.dtype for parameter in build_model(spec, TOKENS, 0).parameters()} == {torch.float32}


def test_a_folder_without_a_model_has_no_configuration_to_give(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ShoalError, match="SH-MODEL-01"):
            portable(TransformersSpec(kind="transformers", weights=str(folder)))
    with pytest.raises(ValueError, match="weights"):
        SPEC.validate_python({"kind": "transformers", "weights": ""})


def test_convolutions_need_images() -> None:
    flat = msgspec.structs.replace(IMAGES, sample_shape=(64,))
    assert build_model(SPEC.validate_python(ALL["mlp"]), flat, 0)
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        build_model(SPEC.validate_python(ALL["cnn"]), flat, 0)


def test_dropout_is_off_unless_asked_for() -> None:
    config = {**ALL["gpt2"]["config"], "resid_pdrop": 0.2}
    assert draws_noise(build_model(SPEC.validate_python({**ALL["gpt2"], "config": config}), TOKENS, 0))


def test_local_weights_and_their_portable_form(tmp_path: Path) -> None:
    source = built("llama")
    source.save_pretrained(tmp_path)  # type: ignore[operator]
    spec = TransformersSpec(kind="transformers", weights=str(tmp_path))
    assert fingerprint(build_model(spec, TOKENS, 9)) == fingerprint(source)
    elsewhere = build_model(portable(spec), TOKENS, 9)
    shapes = [(name, tuple(p.shape)) for name, p in source.named_parameters()]
    assert [(name, tuple(p.shape)) for name, p in elsewhere.named_parameters()] == shapes
    assert portable(TransformersSpec(kind="transformers")).weights is None


def test_code_beside_weights_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "odd", "auto_map": {"AutoConfig": "odd.Config", "AutoModelForCausalLM": "odd.Model"}}'
    )
    (tmp_path / "odd.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        build_model(TransformersSpec(kind="transformers", weights=str(tmp_path)), TOKENS, 0)


def test_the_tiny_model_is_tiny() -> None:
    assert sum(p.numel() for p in build_model(TINY, TOKENS, 0).parameters()) < 50_000


@pytest.mark.parametrize(
    ("architecture", "words"),
    [("bert", "sees the tokens that it is to predict"), ("roberta", "does not take")],
)
def test_a_model_that_does_not_predict_the_next_token_is_refused(architecture: str, words: str) -> None:
    spec = TransformersSpec(kind="transformers", architecture=architecture, config=SMALL)
    with pytest.raises(ShoalError, match=f"SH-MODEL-01.*{words}"):
        check_causal(build_model(spec, TOKENS, 0), TOKENS)


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("llama", {}),
        ("mixtral", {"num_local_experts": 4, "num_key_value_heads": 2}),
        ("bert", {"is_decoder": True}),
    ],
)
def test_a_model_that_predicts_the_next_token_is_taken(architecture: str, more: dict[str, Any]) -> None:
    spec = TransformersSpec(kind="transformers", architecture=architecture, config={**SMALL, **more})
    check_causal(build_model(spec, TOKENS, 0), TOKENS)
