"""Who folds what, where a seal's updates are folded through digests: shards, their folders, and when they agree.

In flow a plan, a seal's members and the log before it; out flow shards with the nodes drawn to fold them, and what
their words amount to. Invariant: all of it is a function of the log, so that anyone draws the same folders, knows which
residuals live on, and finds the same shards digested; nobody folds more than its even share, rounded up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import blake3
import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.base.layout import Layout
from shoal.runlog.entries import Digest, Folding

if TYPE_CHECKING:
    from shoal.runlog.view import RunView, Step

MAX_FOLDERS, MAX_SHARDS = 15, 1024
ALIGNED = 1024
"""Shards longer than this are a multiple of it, so that codecs with blocks lose nothing at their ends."""
EPOCH = 64
"""After so many seals folders are drawn anew: whoever makes keys to fold some shard does not fold it for long."""

Span = tuple[int, int, int]
"""(fragment, start, stop), the last two in the flat vector."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A range of a fragment, who folds it, and since when they carry a residual."""

    fragment: int
    start: int
    stop: int
    folders: tuple[NodeId, ...] = ()
    since: int = 0
    """The seal after which its folders have kept what the digest left out; 0 if they begin with nothing."""

    @property
    def numel(self) -> int:
        return self.stop - self.start

    @property
    def most_bytes(self) -> int:
        """What its part of an update, or its digest, may have."""
        return 8 * self.numel + (1 << 16)


def cut(layout: Layout, fragments: tuple[int, ...], count: int) -> tuple[Span, ...]:
    """These fragments in about `count` ranges of about the same length, none across two fragments."""
    specs = [(index, layout.fragments[index]) for index in fragments]
    length = _aligned(-(-sum(spec.numel for _, spec in specs) // count))
    spans: list[Span] = []
    for index, spec in specs:
        pieces = -(-spec.numel // length)
        step = _aligned(-(-spec.numel // pieces))
        spans += [(index, at, min(at + step, spec.stop)) for at in range(spec.start, spec.stop, step)]
    return tuple(spans)


def _aligned(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED if length > ALIGNED else max(1, length)


@lru_cache(maxsize=16)
def draw(
    salt: str, spans: tuple[Span, ...], members: tuple[NodeId, ...], folders: int
) -> tuple[tuple[NodeId, ...], ...]:
    """So many of the members for each span (all of them, if they are fewer), each member for about as many spans.

    Every pair of the two has a score of its own; the best are taken first, as long as both have room. So a member
    that comes or goes changes its own spans and few others.
    """
    each = min(folders, len(members))
    room = -(-len(spans) * each // len(members))
    scores = sorted(
        (_score(salt, span, member), number, member)
        for number, span in enumerate(spans)
        for member in members
    )
    chosen: list[list[NodeId]] = [[] for _ in spans]
    load: Counter[NodeId] = Counter()
    for _, number, member in scores:
        if len(chosen[number]) < each and load[member] < room:
            chosen[number].append(member)
            load[member] += 1
    for number, span in enumerate(spans):  # Those whose last free members have them already.
        others = sorted((load[m], _score(salt, span, m), m) for m in members if m not in chosen[number])
        for _, _, member in others[: each - len(chosen[number])]:
            chosen[number].append(member)
            load[member] += 1
    return tuple(tuple(sorted(names)) for names in chosen)


def _score(salt: str, span: Span, member: NodeId) -> bytes:
    return blake3.blake3(f"shoal/folder/{salt}/{span[0]}/{span[1]}/{member}".encode()).digest(16)


def shards_of(view: RunView, members: Sequence[NodeId], fragments: tuple[int, ...]) -> tuple[Shard, ...]:
    """The shards of the seal that comes next, by the open plan; () if everybody folds everything."""
    plan = view.plan
    if plan is None or view.genesis is None or not plan.folders:
        return ()
    spans = cut(view.genesis.layout, fragments, plan.shards)
    drawn = draw(_salt(view), spans, tuple(sorted(members)), plan.folders)
    return tuple(
        Shard(*span, names, _since(view, span, names)) for span, names in zip(spans, drawn, strict=True)
    )


def _salt(view: RunView) -> str:
    first = view.steps_done - view.steps_done % EPOCH
    return view.hashes[view.path[first - 1].position if first else 0]


def _since(view: RunView, span: Span, folders: tuple[NodeId, ...]) -> int:
    """The seal after which these very folders all kept the same residual; 0 if there is none. They did where all of
    them signed one digest, it was the last of its fragment, and nothing was rewound since."""
    step = next((step for step in reversed(view.path) if span[0] in step.fragments), None)
    if step is None or step.position < view.rewound_at:
        return 0
    for shard, digest in zip(step.shards, step.digests or (), strict=False):
        if (shard.fragment, shard.start, shard.stop) == span:
            whole = digest is not None and shard.folders == folders == digest.folders
            return step.position if whole else 0
    return 0


def agreed(step: Step, words: Sequence[Folding]) -> tuple[Digest, ...]:
    """The digests of those shards of which more than half of the folders signed one, and nobody another."""
    said: dict[int, dict[tuple[BlobId, int], list[NodeId]]] = {}
    for word in words:
        for number, blob, size_bytes in word.items:
            said.setdefault(number, {}).setdefault((blob, size_bytes), []).append(word.node)
    found = []
    for number, shard in enumerate(step.shards):
        versions = said.get(number, {})
        if len(versions) != 1:
            continue
        ((blob, size_bytes), nodes) = next(iter(versions.items()))
        if 2 * len(nodes) > len(shard.folders):
            found.append(
                Digest(
                    fragment=shard.fragment,
                    start=shard.start,
                    stop=shard.stop,
                    blob=blob,
                    folders=tuple(sorted(nodes)),
                    size_bytes=size_bytes,
                )
            )
    return tuple(found)


def by_shard(step: Step, items: Sequence[Digest]) -> tuple[Digest | None, ...]:
    """The digest of each shard; None for those that everybody folds."""
    known = {(item.fragment, item.start, item.stop): item for item in items}
    found = [(shard, known.get((shard.fragment, shard.start, shard.stop))) for shard in step.shards]
    # A long path has many of these: names that are the same are kept once.
    return tuple(
        msgspec.structs.replace(item, folders=shard.folders)
        if item and item.folders == shard.folders
        else item
        for shard, item in found
    )
