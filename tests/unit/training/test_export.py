import json
import resource
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from shoal.base.errors import ShoalError
from shoal.data.tokeniser import train_bpe
from shoal.training.export import export_huggingface
from shoal.training.flat import load_into
from shoal.training.models import build_model, logits_of
from shoal.training.spec import GptSpec, MlpSpec, ModelSpec, ResnetSpec, TransformersSpec

from .conftest import Run

TEXT_MODELS: dict[str, Any] = {
    "gpt": GptSpec(layers=2, width=32, heads=2),
    "gpt tied": GptSpec(layers=2, width=32, heads=2, tied=True),
    "gpt gelu": GptSpec(layers=2, width=32, heads=2, mlp="gelu"),
    "gpt longer": GptSpec(layers=1, width=32, heads=1, context=64, hidden=40),
    "gpt2": TransformersSpec(
        kind="transformers", architecture="gpt2", config={"n_embd": 16, "n_layer": 1, "n_head": 2}
    ),
}


def export(run: Run, spec: Any, params: torch.Tensor, folder: Path) -> None:
    blob = run.manifest.tokenizer
    export_huggingface(spec, run.manifest, params, None if blob is None else run.held[blob], folder)


def busy_params(model: torch.nn.Module) -> torch.Tensor:
    """Parameters far from their first values, so that no mistake can hide behind zeros and ones."""
    size = sum(parameter.numel() for parameter in model.parameters())
    return torch.randn(size, generator=torch.Generator().manual_seed(0)) * 0.2


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_plain_transformers_computes_the_same_logits(name: str, text_run: Run, tmp_path: Path) -> None:
    spec = TEXT_MODELS[name]
    ours = build_model(spec, text_run.manifest, 0).eval()
    params = busy_params(ours)
    load_into(ours, params)
    export(text_run, spec, params, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    ids = text_run.dataset.batch(np.arange(4)).inputs
    with torch.no_grad():
        a, b = logits_of(ours, ids), logits_of(theirs, ids)
    assert a.std() > 0.1
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in theirs.parameters()) == params.numel()
    load_into(ours, params * 1.01)
    with torch.no_grad():
        assert (logits_of(ours, ids) - b).abs().max() > 1e-4, "the comparison can fail"


def test_the_exported_byte_tokeniser_is_bytes(text_run: Run, tmp_path: Path) -> None:
    spec = TEXT_MODELS["gpt"]
    export(text_run, spec, busy_params(build_model(spec, text_run.manifest, 0)), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("def f(x):\n\treturn  x ,  y .\r\n", "naïve 数据 \x00\x7f", "", " don 't "):
        ids = tokenizer.encode(text)
        assert ids == list(text.encode()) and tokenizer.decode(ids) == text


def test_it_generates(text_run: Run, tmp_path: Path) -> None:
    spec = TEXT_MODELS["gpt"]
    export(text_run, spec, busy_params(build_model(spec, text_run.manifest, 0)), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[100, 101, 102]])
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape == (1, 7)


def test_a_learned_tokeniser_is_exported_with_its_end(text_run: Run, tmp_path: Path) -> None:
    tokeniser = train_bpe([b"some text to learn from " * 20], 280)
    manifest = msgspec.structs.replace(text_run.manifest, vocab_size=tokeniser.vocab_size)
    spec = TEXT_MODELS["gpt"]
    params = busy_params(build_model(spec, manifest, 0))
    export_huggingface(spec, manifest, params, tokeniser.save(), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "some text, and more"
    assert tokenizer.encode(text) == tokeniser.encode(text).tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.eos_token_id == tokenizer.eos_token_id is not None


@pytest.mark.parametrize("spec", [MlpSpec(kind="mlp"), ResnetSpec(kind="resnet", channels=8)])
def test_image_models_come_with_what_their_readme_needs(spec: Any, image_run: Run, tmp_path: Path) -> None:
    ours = build_model(spec, image_run.manifest, 0)
    params = busy_params(ours)
    load_into(ours, params)
    export(image_run, spec, params, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    again: Any = TypeAdapter(ModelSpec).validate_python(config["model"])
    theirs = build_model(again, image_run.manifest, 1)
    theirs.load_state_dict(load_file(tmp_path / "model.safetensors"))
    images = image_run.dataset.batch(np.arange(4)).inputs
    assert torch.equal(ours(images), theirs(images))
    assert tuple(config["sample_shape"]) == image_run.manifest.sample_shape
    assert spec.kind in (tmp_path / "README.md").read_text()


def test_a_folder_that_cannot_be_written(text_run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    spec = TEXT_MODELS["gpt"]
    params = busy_params(build_model(spec, text_run.manifest, 0))
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        export(text_run, spec, params, tmp_path / "file" / "folder")


@pytest.mark.parametrize("room_bytes", [100, 2_700, 60_000])
def test_a_disk_that_is_full_half_way(room_bytes: int, text_run: Run, tmp_path: Path) -> None:
    """Of the tokeniser, of the form the library gives it, and of the weights: each is written by another library."""
    spec = GptSpec(layers=2, width=64)
    params = busy_params(build_model(spec, text_run.manifest, 0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        with pytest.raises(ShoalError, match="SH-DISK-02"):
            export(text_run, spec, params, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_parameters_of_another_model(text_run: Run, tmp_path: Path) -> None:
    params = busy_params(build_model(GptSpec(layers=1, width=32), text_run.manifest, 0))
    with pytest.raises(ShoalError, match="SH-MODEL-01"):
        export(text_run, GptSpec(layers=2, width=32), params, tmp_path)
