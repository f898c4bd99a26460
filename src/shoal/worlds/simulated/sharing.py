"""What simulated nodes need not compute one by one: a fold whose inputs another has folded already.

In flow a state, a seal and the names of its updates; out flows the next state. Invariant: a fold is shared by the
hashes of everything it is a function of, so that two nodes share a state exactly if they would have made the same; a
node still fetches every update and attests for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from shoal.node.service import NodeService
from shoal.replica.state import State, state_hash
from shoal.runlog.view import Step

MOST_FOLDS = 256


class Folds:
    """The latest folds of one run, by their inputs' hashes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, State] = OrderedDict()
        self.made = self.shared = 0

    def find(self, inputs: Hashable) -> State | None:
        found = self._kept.get(inputs)
        self.shared += found is not None
        return found

    def keep(self, inputs: Hashable, state: State) -> None:
        self.made += 1
        self._kept[inputs] = state
        if len(self._kept) > MOST_FOLDS:
            self._kept.popitem(last=False)


class SharingNode(NodeService):
    """A node that folds what nobody has folded, and takes the rest from those who have."""

    folds: Folds

    def _fold_now(self, step: Step) -> State | None:
        assert self.state is not None
        if not all(map(self.blobs.has, step.blobs)):
            return None
        inputs = _inputs(self.state, step)
        state = self.folds.find(inputs)
        if state is None:
            state = super()._fold_now(step)
            if state is not None:
                self.folds.keep(inputs, state)
        return state


def _inputs(state: State, step: Step) -> Hashable:
    updates = tuple((item.claim.blob, item.weight, item.ages, item.place, item.codec) for item in step.folded)
    graft = step.graft.blob if step.graft else ""
    return state_hash(state), updates, step.fragments, step.whole, step.rate, step.place, step.pairs, graft
