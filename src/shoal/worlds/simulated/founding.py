"""The beginning of a simulated run: its data, its first entry and a join token, on the coordinator's disk.

In flows a scenario; out flow bytes on a disk and the genesis entry. Invariant: what is founded here is what
`shoal run` founds, only smaller: every node builds the same trainer from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
import torch

from shoal.base.disk import Disk, SubDisk
from shoal.base.ids import BlobId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, token_hash
from shoal.data.dataset import open_dataset
from shoal.data.manifest import Manifest, Shard
from shoal.data.prepare import prepare
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, make_link
from shoal.runlog.entries import Genesis
from shoal.runlog.files import FileLogStore
from shoal.strategy.signing import founder
from shoal.training.spec import AdamWSpec
from shoal.training.trainer import TorchTrainer, Trainer
from shoal.wire.identity import Identity
from shoal.worlds.simulated.scenario import Scenario, draw_scenario
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

TOKEN = "let me in"  # noqa: S105 (a simulated token)
BEGAN_MS = 1_800_000_000_000


def found_run(
    disk: Disk, identity: Identity, run: RunId, scenario: Scenario, store: LogStore | None = None
) -> bytes:
    """Put a genesis entry, its blobs and a join token on the coordinator's disk, or into its store; the entry."""
    blobs = BlobStore(SubDisk(disk, f"runs/{run}"), lambda point: None)
    recipe = scenario.recipe
    manifest = _digits(blobs) if scenario.torch else _toy_manifest(blobs)
    trainer = make_trainer(scenario, manifest, blobs.get)
    state = initial_state(trainer.layout, trainer.params(), recipe.strategy.fold_rules().slots)
    snapshot = encode_state(state)
    signer = founder(recipe, identity)
    genesis = Genesis(
        coordinator=signer.public,
        recipe=recipe.model_dump_json(),
        manifest=manifest,
        layout=trainer.layout,
        state=state_hash(state),
        snapshot=blobs.put(snapshot),
        snapshot_bytes=len(snapshot),
        arithmetic=ARITHMETIC,
    )
    link = make_link(signer, run, NO_HEAD, 1, BEGAN_MS, genesis)
    store = store or FileLogStore(disk, lambda point: None)
    store.append(run, 0, link.encoded)
    token = JoinToken(sha256=token_hash(TOKEN))
    store.keep(run, f"{TOKEN_PREFIX}0", msgspec.msgpack.encode(token))
    return link.encoded


def make_trainer(scenario: Scenario, manifest: Manifest, read: Callable[[BlobId], bytes]) -> Trainer:
    """What a node of this scenario trains with."""
    recipe = scenario.recipe
    fragments = recipe.strategy.schedule.fragments
    if not scenario.torch:
        return ToyTrainer(toy_layout(scenario.size, fragments), recipe.inner.batch_size)
    assert isinstance(recipe.inner, AdamWSpec)
    return TorchTrainer(
        recipe.model,
        recipe.inner,
        manifest,
        open_dataset(manifest, read),
        recipe.seed,
        torch.device("cpu"),
        fragments=fragments,
    )


@lru_cache(maxsize=4096)
def identity_of(seed: int, name: str) -> Identity:
    """The key of a machine in a scenario, the same in every process."""
    return Identity(f"{name}/{seed}".encode().ljust(32, b"."))


def _toy_manifest(blobs: BlobStore) -> Manifest:
    data = bytes(range(256)) * 4
    shard = Shard(blob=blobs.put(data), items=4096)
    return Manifest(
        kind="tokens", dtype="uint8", train=(shard,), validation=(shard,), context=1, vocab_size=256
    )


@lru_cache(maxsize=1)
def _digits_blobs() -> tuple[Manifest, dict[BlobId, bytes]]:
    kept: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = chunk_list(data).blob
        kept[blob] = data
        return blob

    return prepare(draw_scenario(0).recipe.data, put), kept


def _digits(blobs: BlobStore) -> Manifest:
    manifest, kept = _digits_blobs()
    for data in kept.values():
        blobs.put(data)
    return manifest
