"""The hub's side of an update: what its region did since the last one, and what the parent did meanwhile.

In flow attested states of the region and versions of the parent; out flow pseudo-gradients, and by how much the region
has to move. Invariant: what the parent brings is in the anchor and in the local model alike, whether or not it has
entered the region yet, so that an update counts what the region trained and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal.hub.alignment import Alignment
from shoal.node.learner import Learner, PrivateState
from shoal.node.progress import Progress
from shoal.runlog.entries import Graft
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer


class HubLearner(Learner):
    """Its local model is the region's, as of the last attested state it was shown."""

    def __init__(
        self, trainer: Trainer, recipe: Recipe, items: int, before_claim: Callable[[], None]
    ) -> None:
        super().__init__(trainer, recipe, items)
        self._region = trainer.params().detach().clone()
        """The region's parameters, with all news that were brought to it."""
        self._before_claim = before_claim

    def forget(self) -> None:
        """A region's work does not stand on one state of the parent's: it stays, whatever becomes of that."""
        self._later = None
        self.progress = Progress()

    def private_state(self) -> PrivateState:
        self._before_claim()
        return super().private_state()

    # --- the region ----------------------------------------------------------------------------------------

    def follow(self, region: torch.Tensor) -> None:
        """The region is here now; what the parent did and the region has not been brought yet comes on top."""
        news = self.trainer.params().detach() - self._region
        self._region = region.to(news.device).clone()
        self.trainer.load(self._region + news)

    def news(self) -> torch.Tensor | None:
        """What the region has to be brought; None if it has everything."""
        news = self.trainer.params().detach() - self._region
        return news.cpu() if bool(news.any()) else None

    def brought(self) -> None:
        """The news are on their way into the region."""
        self._region = self.trainer.params().detach().clone()

    def start_over(self, region: torch.Tensor) -> None:
        """The region has lost news that it had: what it has trained since the last claim is given up, and it is to be
        brought to where the parent has it."""
        self._region = region.to(self.trainer.params().device).clone()
        self.trainer.load(self._region if self._anchor is None else self._anchor)

    @property
    def last_sent(self) -> int:
        """The sequence of the last claim; -1 before the first."""
        return self._last_sent

    # --- across a restart ----------------------------------------------------------------------------------

    def place(self, claimed: int, graft: Graft | None) -> Alignment | None:
        """Where the region stands against the parent; None before the first version."""
        if self._anchor is None or self._known is None:
            return None
        news = self.news()
        return Alignment(
            anchor=_bytes(self._anchor),
            known=_bytes(self._known),
            news=b"" if news is None else _bytes(news),
            claimed=claimed,
            graft=graft,
        )

    def resume(self, alignment: Alignment) -> None:
        """Go on from an earlier `place`; the region's parameters must be here."""
        self._anchor, self._known = self._values(alignment.anchor), self._values(alignment.known)
        if alignment.news:
            self.trainer.load(self._region + self._values(alignment.news))

    def _values(self, data: bytes) -> torch.Tensor:
        values = torch.frombuffer(bytearray(data), dtype=torch.float32)
        return values.to(self.trainer.params().device)


def _bytes(values: torch.Tensor) -> bytes:
    return values.cpu().numpy().tobytes()
