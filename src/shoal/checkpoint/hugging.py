"""A Hugging Face folder that was exported here, read back as one flat vector.

In flow the model's spec and a folder of safetensors; out flow the parameters. Invariant: which of our values each
exported one is, the export itself tells, since numbers go through it in place of the values; so the way back cannot
differ from the way there.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from shoal.data.manifest import Manifest
from shoal.training.export import Tensors, to_transformers
from shoal.training.flat import load_into
from shoal.training.models import AnyModelSpec, build_model
from shoal.training.pretrained import portable
from shoal.training.spec import GptSpec, TransformersSpec

_DIGIT = 1 << 12
"""Numbers go through float32 in two digits, each of them exact."""


def read_huggingface(spec: AnyModelSpec, manifest: Manifest, folder: Path) -> torch.Tensor:
    """The parameters in a folder. Raises `KeyError` or `ValueError` where a tensor is missing, unknown or of another
    shape."""
    exported: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        exported |= load_file(path)
    model = build_model(_here(spec), manifest, 0)
    numel = sum(parameter.numel() for parameter in model.parameters())
    whole = torch.arange(numel)
    low = _as_exported(spec, manifest, (whole % _DIGIT).float())
    high = _as_exported(spec, manifest, (whole // _DIGIT).float())
    params, found = torch.zeros(numel), torch.zeros(numel, dtype=torch.bool)
    for name, values in exported.items():
        if low[name].shape != values.shape:
            raise ValueError(f"{name} has shape {tuple(values.shape)}, not {tuple(low[name].shape)}")
        numbers = (high[name].long() * _DIGIT + low[name].long()).reshape(-1)
        params[numbers], found[numbers] = values.reshape(-1).float(), True
    if not found.all():
        raise ValueError(f"{int((~found).sum())} of {numel} parameters are missing")
    return params


def _here(spec: AnyModelSpec) -> AnyModelSpec:
    return portable(spec) if isinstance(spec, TransformersSpec) else spec


def _as_exported(spec: AnyModelSpec, manifest: Manifest, params: torch.Tensor) -> Tensors:
    """How these parameters are called, and how they lie, in the exported model."""
    if isinstance(spec, GptSpec):
        exported: Tensors = to_transformers(spec, manifest, params).state_dict()
        return exported
    model = build_model(_here(spec), manifest, 0)
    load_into(model, params)
    return model.state_dict()
