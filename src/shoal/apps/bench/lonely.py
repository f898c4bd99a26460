"""One trainer that knows nothing of others: the yardstick for nodes in a run.

A process of its own: reads recipe settings from its arguments, says `warm`, waits for a line, trains for the
given seconds in one thread, and prints its tokens a second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from shoal.apps.recipes import find_recipe
from shoal.base.ids import BlobId
from shoal.data.assignment import sample_indices
from shoal.data.dataset import open_dataset
from shoal.data.prepare import prepare
from shoal.replica.blobs import chunk_list
from shoal.strategy.recipe import load_recipe
from shoal.training.spec import OwnInnerSpec
from shoal.training.trainer import TorchTrainer

WARM_UP_STEPS = 5


def main(recipe_name: str, seconds: float, number: int, settings: list[str]) -> None:
    torch.set_num_threads(1)
    recipe = load_recipe(Path(find_recipe(recipe_name)), overrides=settings, environment={})
    assert not isinstance(recipe.inner, OwnInnerSpec)
    blobs: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = chunk_list(data).blob
        blobs[blob] = data
        return blob

    manifest = prepare(recipe.data, put)
    dataset = open_dataset(manifest, blobs.__getitem__)
    trainer = TorchTrainer(recipe.model, recipe.inner, manifest, dataset, recipe.seed, torch.device("cpu"))
    step, batch = 0, recipe.inner.batch_size

    def train() -> int:
        nonlocal step
        start = (number * 1_000_000 + step) * batch
        step += 1
        return trainer.step(sample_indices(recipe.seed, start, batch, manifest.train_items), step).tokens

    for _ in range(WARM_UP_STEPS):
        train()
    print("warm", flush=True)
    sys.stdin.readline()
    began, tokens = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        tokens += train()
    print(tokens / (time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
