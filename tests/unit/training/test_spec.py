from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shoal.training.spec import GptSpec, InnerSpec, ModelSpec

MODEL: TypeAdapter[Any] = TypeAdapter(ModelSpec)
INNER: TypeAdapter[Any] = TypeAdapter(InnerSpec)


@pytest.mark.parametrize("kind", ["gpt", "transformers", "mlp", "cnn", "resnet"])
def test_every_model_has_defaults_and_a_json_form(kind: str) -> None:
    spec = MODEL.validate_python({"kind": kind})
    assert MODEL.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("kind", ["sgd", "adamw", "muon"])
def test_every_optimiser_has_defaults_and_a_json_form(kind: str) -> None:
    spec = INNER.validate_python({"kind": kind})
    assert INNER.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "rnn"},
        {"kind": "gpt", "depth": 3},
        {"kind": "gpt", "layers": 0},
        {"kind": "gpt", "width": 100, "heads": 3},
        {"kind": "gpt", "width": 6, "heads": 2},
    ],
)
def test_models_that_are_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MODEL.validate_python(section)


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "adam"},
        {"kind": "adamw", "lr": 0},
        {"kind": "adamw", "betas": [0.9, 1.0]},
        {"kind": "adamw", "schedule": "cosine"},
        {"kind": "sgd", "precision": "fp8"},
        {"kind": "muon", "clip": -1},
    ],
)
def test_optimisers_that_are_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        INNER.validate_python(section)


def test_hidden_width_follows_the_mlp() -> None:
    assert GptSpec(width=128).hidden_width == 352
    assert GptSpec(width=128, mlp="gelu").hidden_width == 512
    assert GptSpec(width=128, hidden=100).hidden_width == 100
