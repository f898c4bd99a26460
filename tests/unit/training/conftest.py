"""Small data for trainers: text windows and images, prepared once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.base.ids import BlobId
from shoal.data.dataset import Dataset, open_dataset
from shoal.data.manifest import Manifest
from shoal.data.prepare import prepare
from shoal.data.spec import NpzSource, TextSource
from shoal.training.models import AnyModelSpec
from shoal.training.spec import AdamWSpec, GptSpec
from shoal.training.trainer import TorchTrainer

CPU = torch.device("cpu")
TINY = GptSpec(layers=2, width=32, heads=2)


@dataclass(frozen=True)
class Run:
    """Prepared data, and trainers on it."""

    manifest: Manifest
    held: dict[BlobId, bytes]
    dataset: Dataset

    def trainer(self, model: AnyModelSpec = TINY, inner: Any = None, **options: Any) -> TorchTrainer:
        spec = inner or AdamWSpec(batch_size=4)
        return TorchTrainer(model, spec, self.manifest, self.dataset, 1, CPU, **options)


def _run(spec: Any) -> Run:
    held: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = BlobId(f"{len(held):064x}")
        held[blob] = data
        return blob

    manifest = prepare(spec, put)
    return Run(manifest, held, open_dataset(manifest, held.__getitem__))


@pytest.fixture(scope="session")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"def f{n % 7}(x):\n    return x + {n % 10}\n\n" for n in range(300)))
    return _run(TextSource(source="text", path=str(path), context=16))


@pytest.fixture(scope="session")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three classes of 8x8 images, told apart by which third is bright."""
    path: Path = tmp_path_factory.mktemp("images") / "a.npz"
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 200)
    images = random.normal(0, 0.3, (200, 8, 8))
    for place, label in enumerate(labels):
        images[place, :, label * 3 : label * 3 + 2] += 1
    np.savez(path, x=images, y=labels)
    return _run(NpzSource(source="npz", path=str(path), validation_fraction=0.2))
