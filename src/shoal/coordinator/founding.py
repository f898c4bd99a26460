"""From a recipe to a run: data, model, first state, genesis entry, join token.

In flows a recipe; out flow blobs, the log's first entry and a secret for those who may join. Invariant: the
genesis entry is written last, so a run either exists with everything its nodes need, or not at all; and the
same recipe and data give the same first state, whoever founds it.
"""

from __future__ import annotations

import random as randomness
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.checkpoint.library import Library
from shoal.checkpoint.starting import Beginning, find_beginning
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, token_hash
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest
from shoal.data.prepare import prepare
from shoal.replica.blobs import PRUNE_AFTER_ROUNDS, BlobStore
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import State, encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, Link, make_link
from shoal.runlog.entries import Genesis
from shoal.runlog.view import RunView
from shoal.strategy.private import guarantee_of
from shoal.strategy.recipe import Recipe
from shoal.strategy.signing import founder
from shoal.training.flat import layout_of
from shoal.training.models import build_model, check_causal
from shoal.training.pretrained import portable
from shoal.training.spec import TransformersSpec
from shoal.wire.identity import Identity

TOKEN_BYTES = 16
FIRST_TERM = 1
FOUNDING = "founding"
"""A file in a run's folder, and a kept value in the store that is to have its log, until it has."""


@dataclass(frozen=True, slots=True)
class Founded:
    """A new run, and the only copy of its first join token: the store keeps a hash."""

    run: RunId
    token: str


def found_run(
    recipe: Recipe,
    *,
    identity: Identity,
    store: LogStore,
    blobs: Callable[[RunId], BlobStore],
    wall_ms: int,
    random: randomness.Random,
    expires_s: float | None = None,
    allow_code: bool = False,
    first: Callable[[Recipe, Manifest], State] | None = None,
) -> Founded:
    """Make a run of this recipe, durably. Blocks for as long as the data takes to prepare.

    `first` gives the state to begin with where the recipe cannot: a model of somebody's own program. Where others may
    start in the same home meanwhile, be at work there (`locks.at_work`), or they take the blobs for left behind.

    Raises SH-RECIPE-02, SH-DATA-01 to -03, SH-MODEL-01, SH-PRIVACY-01, SH-CKPT-01 to -03 or what the disk and the
    store raise; then nothing is left behind.
    """
    run = RunId(random.randbytes(16).hex())
    room = blobs(run)
    with being_founded(store, run, room):
        begin = first or partial(first_state, allow_code=allow_code)
        beginning = find_beginning(recipe.start, Library(store, blobs)) if recipe.start else None
        link = _genesis(recipe, run, identity, room, wall_ms, begin, beginning)
        token, _ = add_token(store, run, wall_ms=wall_ms, random=random, expires_s=expires_s)
        store.append(run, link.entry.position, link.encoded)
    return Founded(run, token)


def found_with(
    service: CoordinatorService,
    recipe: Recipe,
    *,
    expires_s: float | None = None,
    first: Callable[[Recipe, Manifest], State] | None = None,
) -> Founded:
    """The same, by a coordinator that runs: in its store, signed with its key."""
    return found_run(
        recipe,
        identity=service.identity,
        store=service.store,
        blobs=service.blob_store,
        wall_ms=service.host.clock.wall_ms(),
        random=service.host.random,
        expires_s=expires_s,
        first=first,
    )


@contextmanager
def being_founded(store: LogStore, run: RunId, room: BlobStore) -> Iterator[None]:
    """Put the run's blobs into the room meanwhile, and append its genesis last. What raises leaves nothing behind.

    A mark beside the blobs says that they may be nobody's, from before the first of them until after the genesis. After
    a crash only the store that keeps the mark too can say which: a home may be opened with another store, which has
    never heard of the run.
    """
    try:
        room.disk.write(FOUNDING, b"")
        room.disk.sync(FOUNDING)
        room.disk.sync_folder("")
        store.keep(run, FOUNDING, b"")
        yield
    except BaseException:
        with suppress(ShoalError):  # What happened before is to be told; the rest goes at the next start.
            if not store.length(run):  # A lost connection may hide that it was appended.
                discard(store, run, room)
        raise
    with suppress(ShoalError):  # The run is founded; marks that stay go at the next start.
        unmark(store, run, room)


def unmark(store: LogStore, run: RunId, room: BlobStore) -> None:
    """Say that a run is in its log. The file goes last: it is what a start looks for."""
    store.drop(run, FOUNDING)
    room.disk.remove(FOUNDING)


def discard(store: LogStore, run: RunId, room: BlobStore) -> None:
    """Remove all that there is of a run that did not come to be: its blobs first and its mark last, so that this can be
    done again."""
    for round_number in (0, PRUNE_AFTER_ROUNDS):  # unneeded now, and still unneeded when its time has come
        room.prune((), round_number)
    for key in store.kept(run, ""):
        if key != FOUNDING:
            store.drop(run, key)
    unmark(store, run, room)


def add_token(
    store: LogStore,
    run: RunId,
    *,
    wall_ms: int,
    random: randomness.Random,
    expires_s: float | None = None,
    uses: int | None = None,
    nodes: tuple[NodeId, ...] = (),
) -> tuple[str, JoinToken]:
    """Draw another join token and keep its hash; the secret, and what was kept. Tokens long expired go."""
    known = {key: _read_token(value) for key, value in store.kept(run, TOKEN_PREFIX).items()}
    for key, old in known.items():
        if old.expires_ms is not None and old.expires_ms + _REMEMBERED_MS < wall_ms:
            store.drop(run, key)
    secret = random.randbytes(TOKEN_BYTES).hex()
    expires_ms = None if expires_s is None else wall_ms + int(expires_s * 1000)
    token = JoinToken(sha256=token_hash(secret), expires_ms=expires_ms, uses=uses, nodes=nodes)
    number = 1 + max((int(key.removeprefix(TOKEN_PREFIX)) for key in known), default=-1)
    store.keep(run, f"{TOKEN_PREFIX}{number}", msgspec.msgpack.encode(token))
    return secret, token


# Those who come with an expired ticket are told so for a while, rather than that it is wrong.
_REMEMBERED_MS = 30 * 24 * 3600 * 1000


def read_tokens(store: LogStore, run: RunId) -> tuple[JoinToken, ...]:
    """Every join token that is kept for a run."""
    return tuple(_read_token(value) for value in store.kept(run, TOKEN_PREFIX).values())


def _read_token(value: bytes) -> JoinToken:
    return msgspec.msgpack.decode(value, type=JoinToken)


def _genesis(
    recipe: Recipe,
    run: RunId,
    identity: Identity,
    room: BlobStore,
    wall_ms: int,
    begin: Callable[[Recipe, Manifest], State],
    beginning: Beginning | None,
) -> Link:
    manifest = beginning.data_for(recipe, room) if beginning else None
    manifest = manifest or prepare(recipe.data, room.put)
    _check_batch(recipe, manifest)
    guarantee_of(recipe, manifest.train_items)  # refuses what cannot be promised on this data
    state = begin(recipe, manifest)
    state = beginning.first_state(state) if beginning else state
    snapshot = encode_state(state)
    _check_quota(recipe, room.used_bytes(), len(snapshot))
    signer = founder(recipe, identity)
    genesis = Genesis(
        coordinator=signer.public,
        recipe=as_logged(recipe),
        manifest=manifest,
        layout=state.layout,
        state=state_hash(state),
        snapshot=room.put(snapshot),
        snapshot_bytes=len(snapshot),
        arithmetic=ARITHMETIC,
        origins=beginning.origins if beginning else (),
    )
    link = make_link(signer, run, NO_HEAD, FIRST_TERM, wall_ms, genesis)
    RunView().apply(link)  # the check that every reader of this log will make
    return link


def as_logged(recipe: Recipe) -> str:
    """The recipe as the genesis entry holds it, which names nothing that only this machine has."""
    if isinstance(recipe.model, TransformersSpec):
        recipe = recipe.model_copy(update={"model": portable(recipe.model)})
    return recipe.model_dump_json()


def first_state(recipe: Recipe, manifest: Manifest, *, allow_code: bool = False) -> State:
    """The state a run of this recipe on this data begins with: a function of the two alone."""
    model = build_model(recipe.model, manifest, recipe.seed, allow_code=allow_code)
    if isinstance(recipe.model, TransformersSpec):
        check_causal(model, manifest)
    layout = layout_of(model, recipe.strategy.schedule.fragments)
    params = [parameter.detach().reshape(-1).float() for _, parameter in model.named_parameters()]
    return initial_state(layout, torch.cat(params), recipe.strategy.fold_rules().slots)


def _check_batch(recipe: Recipe, manifest: Manifest) -> None:
    if manifest.train_items < recipe.inner.batch_size:
        raise ShoalError(
            "SH-DATA-02",
            f"{manifest.train_items} training samples do not fill one batch of {recipe.inner.batch_size}",
            "add data, shorten data.context or lower inner.batch_size",
        )


def _check_quota(recipe: Recipe, data_bytes: int, state_bytes: int) -> None:
    """Refuse a quota in which nobody could store what the first rounds make: they would never be sealed."""
    needed, quota = data_bytes + 3 * state_bytes, recipe.storage.quota_bytes
    if quota < needed:
        raise ShoalError(
            "SH-RECIPE-02",
            f"storage.quota_bytes: found {quota}; allowed: {needed} at least, which the data ({data_bytes}), two saved "
            f"states ({state_bytes} each) and an update may take",
            "raise it, or train a smaller model or on less data",
        )
