"""A node's privacy at work: which samples a step takes, the noise, and the ledger of what was spent.

In flow the run's guarantee, this node's part of the data and secret bytes; out flow private steps and updates.
Invariant: whatever leaves this node rests on releases that its ledger counted durably before; the ledger never counts
fewer than the log shows, so that a lost disk does not give a spent budget back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec
import torch

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.data.assignment import Indices, part_samples, sample_indices
from shoal.privacy.source import SecretSource
from shoal.runlog.entries import Assignment
from shoal.runlog.view import Member
from shoal.strategy.private import Guarantee, guarantee_of
from shoal.strategy.recipe import Recipe
from shoal.training.private import Noising, PrivateStepping
from shoal.training.trainer import Trainer
from shoal.wire.signed import digest, parse

LEDGER = "privacy"
SALT_BYTES = 32


class Spent(msgspec.Struct, frozen=True):
    """The ledger: how many releases there were, and a hash of that, since a disk may rot."""

    releases: int
    check: str


class Privately:
    """One node's releases in one run. Works in the job that trains; `save` before anything of it leaves."""

    def __init__(
        self, guarantee: Guarantee, source: SecretSource, disk: Disk, *, seed: int, train_items: int
    ) -> None:
        self.guarantee = guarantee
        self.part = -1
        """This node's part of the data; -1 while it is not known, or if it has none."""
        self._source, self._disk = source, disk
        self._seed, self._items = seed, train_items
        self.spent = _read(disk)

    @property
    def by_sample(self) -> bool:
        return self.guarantee.spec.unit == "sample"

    @property
    def epsilon(self) -> float:
        return self.guarantee.epsilon(self.spent)

    def take_place(self, members: Mapping[NodeId, Member], node: NodeId) -> None:
        """Find this node's part of the data, by the order in which members joined, and what the log says it spent."""
        number = list(members).index(node) if node in members else self.guarantee.parts
        self.part = number if number < self.guarantee.parts else -1
        if node in members:
            self.spent = max(self.spent, releases_in_log(self.guarantee, members[node]))

    def refusal(self, steps: int) -> str:
        """Why this node may not go on for so many steps; "" if it may."""
        if self.by_sample and self.part < 0:
            return no_part(self.guarantee)
        return self.guarantee.exhausted(self.spent, steps if self.by_sample else 1)

    def _draw(self) -> Indices:
        """The samples of the next step: each of this node's part with the same chance."""
        if self.part < 0:
            raise AssertionError("a private step without a part of the data")
        size = self.guarantee.part_items
        places = self._source.chosen(size, self.guarantee.mechanism.rate) + self.part * size
        return part_samples(self._seed, places, self._items)

    def _noising(self) -> Noising:
        """Count a step, and say how it is made private."""
        self._count()
        clip = self.guarantee.spec.clip
        return Noising(
            clip=clip,
            deviation=clip * self.guarantee.noise,
            expected=self.guarantee.batch,
            normal=self._source.normal,
        )

    def train(self, trainer: Trainer, assignment: Assignment, first_step: int, number: int) -> int:
        """One step of an assignment; how many targets it counts for, which does not depend on what was drawn."""
        if self.by_sample:
            if not isinstance(trainer, PrivateStepping):
                raise AssertionError("this trainer takes no private steps")
            trainer.private_step(self._draw(), first_step + number, self._noising())
            return trainer.targets(assignment.batch)
        start = assignment.data.start + number * assignment.batch
        indices = sample_indices(self._seed, start, assignment.batch, self._items)
        return trainer.step(indices, first_step + number).tokens

    def hiding(self, parts: Iterable[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """What clips and noises each part of one whole update, which counts as one release."""
        self._count()
        clip = self.guarantee.spec.clip
        length = math.sqrt(math.fsum(float(part.double().square().sum()) for part in parts))
        factor = min(1.0, clip / length) if length > 0 else 1.0

        def hide(part: torch.Tensor) -> torch.Tensor:
            noise = self._source.normal(part.numel()).to(part.device).mul_(clip * self.guarantee.noise)
            return part.mul(factor).add_(noise)

        return hide

    def salt(self) -> bytes:
        """What makes the hash of a private state tell nothing about it."""
        return self._source.uniform(SALT_BYTES // 8).tobytes()

    def save(self, reached: Callable[[str], None]) -> None:
        """Make the ledger durable: before anything that rests on it leaves."""
        ledger = msgspec.msgpack.encode(Spent(self.spent, _check(self.spent)))
        write_atomic(self._disk, LEDGER, ledger, reached)
        reached("node.after-privacy")

    def _count(self) -> None:
        if self.guarantee.exhausted(self.spent, 1):
            raise AssertionError("a release beyond the privacy budget")
        self.spent += 1


def private_part(
    recipe: Recipe, train_items: int, fresh: Callable[[int], bytes], disk: Disk
) -> Privately | None:
    """A node's part in a private run; None where the recipe asks for no privacy. Raises SH-PRIVACY-01 or -02, and
    SH-DISK-02 if the ledger is damaged."""
    guarantee = guarantee_of(recipe, train_items)
    if guarantee is None:
        return None
    return Privately(guarantee, SecretSource(fresh), disk, seed=recipe.seed, train_items=train_items)


def no_part(guarantee: Guarantee) -> str:
    return f"the training data is cut into {guarantee.parts} parts, and others have them all"


def releases_in_log(guarantee: Guarantee, member: Member) -> int:
    """What a member has certainly spent."""
    return member.steps if guarantee.spec.unit == "sample" else member.updates


def _read(disk: Disk) -> int:
    """What the ledger says. Raises SH-DISK-02 if it is damaged: then nobody knows what was spent."""
    if disk.size(LEDGER) is None:
        return 0
    spent = parse(disk.read(LEDGER), Spent)
    if spent is None or spent.check != _check(spent.releases):
        raise ShoalError(
            "SH-DISK-02",
            "the ledger of what this node spent of its privacy is damaged, so that it cannot go on",
            f"restore the run's file {LEDGER!r} from a backup, or do not take part in this run again",
        )
    return spent.releases


def _check(releases: int) -> str:
    return digest(f"shoal/privacy/{releases}".encode())
