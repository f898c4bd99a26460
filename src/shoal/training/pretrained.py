"""Causal language models of `transformers`, fresh or from a local folder.

In flows a spec; out flows the library's own model in float32. Invariant: nothing is downloaded, and code that
lies beside weights runs only where the caller allows it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.base.errors import ShoalError
from shoal.training.spec import TransformersSpec


def build_pretrained(spec: TransformersSpec, vocab_size: int, context: int, allow_code: bool) -> nn.Module:
    """The model, ready for token windows of `context`. Raises SH-MODEL-01."""
    try:
        model = _from_weights(spec, allow_code) if spec.weights else _fresh(spec, vocab_size, context)
    except Exception as error:  # a configuration can fail inside the library in any of its ways
        raise _unbuildable(f"{spec.weights or spec.architecture}: {error}") from error
    _check_fits(model.config.get_text_config(), vocab_size, context)
    model.config.use_cache = False
    built: nn.Module = model
    return built


def portable(spec: TransformersSpec) -> TransformersSpec:
    """The same model described by its configuration alone, for machines that do not have the weights' folder.

    They build it empty and load the run's parameters into it. Raises SH-MODEL-01.
    """
    if spec.weights is None:
        return spec
    try:
        config = _read_config(spec, allow_code=False).to_diff_dict()
    except Exception as error:  # as above
        raise _unbuildable(f"{spec.weights}: {error}") from error
    architecture = config.pop("model_type")
    settled = {
        key: value for key, value in config.items() if key not in ("architectures", "transformers_version")
    }
    return TransformersSpec(kind="transformers", architecture=architecture, config=settled)


def transformers_library() -> Any:
    """`transformers`, imported only by those who use it: it takes seconds, and 150 MB from then on."""
    return importlib.import_module("transformers")


def _fresh(spec: TransformersSpec, vocab_size: int, context: int) -> Any:
    library = transformers_library()
    if spec.architecture not in library.CONFIG_MAPPING:
        raise ValueError("transformers knows no such architecture")
    # Marks outside a small vocabulary are an error for generation, so there are none unless asked for.
    settings = {"vocab_size": vocab_size, "max_position_embeddings": context}
    # Where both are given, the library drops what the recipe says by the architecture's own name.
    own_names = library.CONFIG_MAPPING[spec.architecture].attribute_map
    settings = {name: value for name, value in settings.items() if own_names.get(name) not in spec.config}
    marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = library.AutoConfig.for_model(spec.architecture, **{**settings, **marks, **spec.config})
    _silence_dropout(config, spec.config)
    return library.AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _from_weights(spec: TransformersSpec, allow_code: bool) -> Any:
    return transformers_library().AutoModelForCausalLM.from_pretrained(
        spec.weights,
        config=_read_config(spec, allow_code),
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=allow_code,
    )


def _read_config(spec: TransformersSpec, allow_code: bool) -> Any:
    if not Path(spec.weights or "").is_dir():
        raise ValueError("there is no such folder")
    config = transformers_library().AutoConfig.from_pretrained(
        spec.weights, local_files_only=True, trust_remote_code=allow_code, **spec.config
    )
    _silence_dropout(config, spec.config)
    return config


def _silence_dropout(config: Any, overrides: dict[str, Any]) -> None:
    """Dropout is off unless the recipe asks for it: short runs do not overfit, and steps stay repeatable."""
    for name in dropout_rates(config):
        if name not in overrides:
            setattr(config, name, 0.0)


def dropout_rates(config: Any) -> dict[str, float]:
    """The configuration's dropout settings that are numbers."""
    settings = config.to_dict().items()
    return {
        name: float(value) for name, value in settings if "drop" in name and isinstance(value, int | float)
    }


def _check_fits(config: Any, vocab_size: int, context: int) -> None:
    if config.vocab_size < vocab_size:
        raise _unbuildable(f"its vocabulary of {config.vocab_size} is smaller than the data's {vocab_size}")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < context:
        raise _unbuildable(f"its {longest} positions are fewer than the data's context of {context}")


def _unbuildable(cause: str) -> ShoalError:
    return ShoalError(
        "SH-MODEL-01", f"the model cannot be built: {cause}", "check the recipe's model section"
    )
