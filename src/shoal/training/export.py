"""From a finished run to a folder that others load without Shoal.

In flow the specs, the flat parameters and the tokeniser; out flows a folder. Text models load with plain
`transformers`, no remote code; image models are safetensors with a description. Invariant: the exported model
computes the same logits as the trained one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from shoal.base.errors import ShoalError
from shoal.data.manifest import Manifest
from shoal.data.tokeniser import END_OF_TEXT, load_tokeniser
from shoal.training.flat import load_into
from shoal.training.gpt import NORM_EPS, ROTARY_BASE
from shoal.training.models import AnyModelSpec, build_model, other_tensors
from shoal.training.pretrained import portable, transformers_library
from shoal.training.spec import GptSpec, TransformersSpec

Tensors = dict[str, torch.Tensor]


def export_huggingface(
    model_spec: AnyModelSpec,
    manifest: Manifest,
    params: torch.Tensor,
    tokenizer_bytes: bytes | None,
    folder: Path,
) -> None:
    """Write the model to `folder`, which is made if needed. Raises SH-DISK-02 where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(model_spec, GptSpec | TransformersSpec):
            end = (
                None
                if tokenizer_bytes is None
                else _save_tokenizer(tokenizer_bytes, manifest.context, folder)
            )
            _save_text_model(model_spec, manifest, params, end, folder)
        else:
            _save_arrays_model(model_spec, manifest, params, folder)
    except (OSError, SafetensorError) as error:  # The latter for a full disk, too.
        raise ShoalError(
            "SH-DISK-02", f"{folder} cannot be written: {error}", "choose another folder, or free space"
        ) from error


def _save_text_model(
    spec: GptSpec | TransformersSpec, manifest: Manifest, params: torch.Tensor, end: int | None, folder: Path
) -> None:
    model: Any
    if isinstance(spec, GptSpec):
        model = to_transformers(spec, manifest, params)
    else:
        model = _rebuilt(portable(spec), manifest, params)
    if end is not None:
        model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.config.use_cache = model.generation_config.use_cache = True
    model.save_pretrained(folder)


def to_transformers(spec: GptSpec, manifest: Manifest, params: torch.Tensor) -> Any:
    """Our decoder as a `LlamaForCausalLM`, or as an `ArceeForCausalLM` where its MLP has no gate."""
    library, kind = transformers_library(), "Llama" if spec.mlp == "swiglu" else "Arcee"
    config = getattr(library, f"{kind}Config")(
        vocab_size=manifest.vocab_size,
        hidden_size=spec.width,
        intermediate_size=spec.hidden_width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.width // spec.heads,
        hidden_act="silu" if spec.mlp == "swiglu" else "gelu_pytorch_tanh",
        max_position_embeddings=spec.context or manifest.context,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=spec.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = getattr(library, f"{kind}ForCausalLM")(config)
    ours = _rebuilt(spec, manifest, params).state_dict()
    model.load_state_dict(_llama_names(spec, ours), strict=True)
    return model


def _llama_names(spec: GptSpec, ours: Tensors) -> Tensors:
    named = {
        "model.embed_tokens.weight": ours["embedding.weight"],
        "model.norm.weight": ours["norm.weight"],
        "lm_head.weight": ours["head.weight"],
    }
    for layer in range(spec.layers):
        named |= _llama_layer(spec, ours, f"blocks.{layer}.", f"model.layers.{layer}.")
    return named


def _llama_layer(spec: GptSpec, ours: Tensors, block: str, layer: str) -> Tensors:
    query, key, value = ours[block + "attention.qkv"]
    named = {
        "input_layernorm.weight": ours[block + "attention_norm.weight"],
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": ours[block + "attention.out"],
        "post_attention_layernorm.weight": ours[block + "mlp_norm.weight"],
        "mlp.down_proj.weight": ours[block + "mlp.down"],
    }
    if spec.mlp == "swiglu":
        named["mlp.gate_proj.weight"], named["mlp.up_proj.weight"] = ours[block + "mlp.gate_up"]
    else:
        named["mlp.up_proj.weight"] = ours[block + "mlp.up"]
    return {layer + name: tensor for name, tensor in named.items()}


def _rebuilt(spec: AnyModelSpec, manifest: Manifest, params: torch.Tensor) -> nn.Module:
    model = build_model(spec, manifest, seed=0)
    if sum(parameter.numel() for parameter in model.parameters()) != params.numel():
        raise other_tensors()
    load_into(model, params.detach().cpu())
    return model


def _save_tokenizer(data: bytes, context: int, folder: Path) -> int | None:
    """Write the tokeniser; the id that ends a text, where it has one."""
    text = load_tokeniser(data).to_huggingface()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    tokenizer = transformers_library().PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    if END_OF_TEXT in tokenizer.get_vocab():
        tokenizer.eos_token = END_OF_TEXT
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises bare Exception for a disk that is full
        raise OSError(str(error)) from error
    end: int | None = tokenizer.eos_token_id
    return end


def _save_arrays_model(spec: AnyModelSpec, manifest: Manifest, params: torch.Tensor, folder: Path) -> None:
    model = _rebuilt(spec, manifest, params)
    save_file(model.state_dict(), folder / "model.safetensors")
    described = {
        "model": spec.model_dump(mode="json"),
        "sample_shape": manifest.sample_shape,
        "classes": manifest.classes,
        "input": "bytes divided by 255" if manifest.dtype == "uint8" else "float32 as given",
    }
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(described)))
    (folder / "README.md").write_text(_README.format(kind=spec.kind), encoding="utf-8")


_README = """# A {kind} classifier trained with Shoal

`model.safetensors` holds the weights, `config.json` the architecture and the form of its input.

```python
import json
from pathlib import Path

from pydantic import TypeAdapter
from safetensors.torch import load_file
from shoal.training.spec import ModelSpec
from shoal.training.vision import build_vision

config = json.loads(Path("config.json").read_text())
spec = TypeAdapter(ModelSpec).validate_python(config["model"])
model = build_vision(spec, tuple(config["sample_shape"]), config["classes"], seed=0)
model.load_state_dict(load_file("model.safetensors"))
```
"""
