"""A run with saved states whose snapshots are real, and whose log names them."""

from __future__ import annotations

import msgspec
import torch
from runlog.small_log import NODES, Clerk, genesis_of, small_recipe

from shoal.checkpoint.library import Library
from shoal.checkpoint.vertices import vertices_of
from shoal.replica.blobs import BlobStore
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.runlog.entries import Snapshot
from shoal.runlog.files import FileLogStore
from shoal.worlds.simulated.disk import SimDisk


def story(blobs: BlobStore, rounds: int) -> tuple[Clerk, list[bytes]]:
    """A log of so many rounds, each with a saved state, and all their snapshots, the beginning's first."""
    clerk, a = Clerk(), NODES[0]
    genesis = genesis_of(small_recipe())
    states = [
        initial_state(genesis.layout, torch.full((genesis.layout.numel,), float(number)), ())
        for number in range(rounds + 1)
    ]
    snapshots = [encode_state(state) for state in states]
    stored = [blobs.put(data) for data in snapshots]
    clerk.append(msgspec.structs.replace(genesis, state=state_hash(states[0]), snapshot=stored[0]))
    clerk.join(a)
    for number in range(1, rounds + 1):
        clerk.plan(a)
        at = clerk.seal(a)
        hashed = state_hash(states[number])
        clerk.attest(at, hashed, a)
        size = len(snapshots[number])
        clerk.append(Snapshot(at=at, state=hashed, blob=stored[number], size_bytes=size, holders=(a.node,)))
    return clerk, snapshots


def test_a_library_gives_back_what_the_log_names() -> None:
    disk = SimDisk()
    store, blobs = FileLogStore(disk, lambda point: None), BlobStore(disk, lambda point: None)
    clerk, _ = story(blobs, 3)
    for position, entry in enumerate(clerk.entries):
        store.append(clerk.run, position, entry)
    library = Library(store, lambda run: blobs)
    for number, vertex in enumerate(vertices_of(clerk.entries)):
        assert library.stored(vertex)
        assert torch.equal(library.state_of(vertex).params, torch.full((16,), float(number)))
