"""Merkle trees as the contract checks them: leaves hashed twice, pairs sorted before they are hashed.

In flow a job's cumulative amounts; out flow a root and a proof for each node. Invariant: the tree is a pure function of
the amounts: leaves are sorted by their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.chain.abi import Type, encode
from shoal.chain.keccak import keccak256

_LEAF = (Type("uint256"), Type("address"), Type("uint128"))


def leaf_of(job: int, address: str, cumulative: int) -> bytes:
    return keccak256(keccak256(encode(_LEAF, (job, address, cumulative))))


@dataclass(frozen=True, slots=True)
class Tree:
    levels: tuple[tuple[bytes, ...], ...]
    """Leaves first, the root last."""
    places: Mapping[str, int]
    """Where each address's leaf is."""

    @property
    def root(self) -> bytes:
        return self.levels[-1][0]

    def proof(self, address: str) -> list[bytes]:
        place, proof = self.places[address], []
        for level in self.levels[:-1]:
            beside = place ^ 1
            if beside < len(level):
                proof.append(level[beside])
            place //= 2
        return proof


def make_tree(job: int, amounts: Mapping[str, int]) -> Tree:
    """The tree over every address with an amount; there must be one."""
    leaves = sorted((leaf_of(job, address, amount), address) for address, amount in amounts.items())
    level = tuple(leaf for leaf, _ in leaves)
    levels = [level]
    while len(level) > 1:
        level = tuple(
            _pair(level[at], level[at + 1]) if at + 1 < len(level) else level[at]
            for at in range(0, len(level), 2)
        )
        levels.append(level)
    return Tree(tuple(levels), {address: place for place, (_, address) in enumerate(leaves)})


def _pair(one: bytes, two: bytes) -> bytes:
    return keccak256(min(one, two) + max(one, two))
