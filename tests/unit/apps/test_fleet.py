"""The stacked fleet computes what separate trainers compute."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from shoal.apps.bench.converge.fleet import StackedFleet
from shoal.base.ids import BlobId
from shoal.data.dataset import open_dataset
from shoal.data.prepare import prepare
from shoal.data.spec import TextSource
from shoal.replica.blobs import chunk_list
from shoal.training.spec import AdamWSpec, GptSpec, MuonSpec, SgdSpec
from shoal.training.trainer import TorchTrainer

WORKERS, BATCH, STEPS = 3, 2, 4
INNER = {
    "muon": MuonSpec(kind="muon", batch_size=BATCH, warmup_steps=2),
    "adamw": AdamWSpec(batch_size=BATCH, clip=0.5),
    "sgd": SgdSpec(kind="sgd", batch_size=BATCH, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
@pytest.mark.parametrize("inner", sorted(INNER))
def test_each_worker_is_a_trainer_of_its_own(
    inner: str, mlp: Literal["gelu", "swiglu"], tmp_path: Path
) -> None:
    blobs: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = chunk_list(data).blob
        blobs[blob] = data
        return blob

    text = "".join(f"def f{n}(x):\n    return x * {n}\n" for n in range(400))
    (tmp_path / "code.py").write_text(text)
    manifest = prepare(TextSource(source="text", path=str(tmp_path / "code.py"), context=16), put)
    dataset = open_dataset(manifest, blobs.__getitem__)
    model, device = GptSpec(layers=2, width=32, heads=2, mlp=mlp, tied=mlp == "swiglu"), torch.device("cpu")
    fleet = StackedFleet(model, INNER[inner], manifest, dataset, 5, device, workers=WORKERS)
    trainers = [TorchTrainer(model, INNER[inner], manifest, dataset, 5, device) for _ in range(WORKERS)]
    assert torch.equal(fleet.params[1], trainers[1].params())
    for step in range(STEPS):
        parts = [np.arange(BATCH) + BATCH * (WORKERS * step + worker) for worker in range(WORKERS)]
        losses = fleet.step(parts, step)
        for worker, trainer in enumerate(trainers):
            alone = trainer.step(parts[worker], step)
            assert losses[worker].item() == pytest.approx(alone.loss, rel=1e-4)
            assert torch.allclose(fleet.params[worker], trainer.params(), atol=2e-4)
    assert not torch.allclose(fleet.params[0], fleet.params[1], atol=1e-3)
    alone = trainers[2].evaluate(3)
    assert fleet.evaluate(trainers[2].params(), 3, BATCH) == pytest.approx(alone, rel=1e-5)
