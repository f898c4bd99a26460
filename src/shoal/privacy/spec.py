"""The recipe's `privacy:` section: what is protected, and how well.

In flows what a person wrote; out flows a checked, frozen value. Invariant: without the section a run is as if this
package were not there.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.base.section import Section


class PrivacySpec(Section):
    """Differential privacy of what nodes publish, stated for each node, see docs/privacy.md. Give `epsilon`, `noise`
    or both; leave the section out for no privacy."""

    unit: Literal["sample", "update"] = "sample"
    """What is protected. `sample`: each training sample; gradients are clipped sample by sample and noised in every
    step. `update`: all that one node trained on; each whole update is clipped and noised before it is encoded."""
    clip: float = Field(default=1.0, gt=0, le=1e6)
    """The length to which a sample's gradient, or an update, is cut. Too low biases training, too high adds noise."""
    noise: float | None = Field(default=None, ge=0.1, le=1e4)
    """The noise's deviation, in multiples of `clip`. Null: just enough that the planned steps fit into `epsilon`."""
    epsilon: float | None = Field(default=None, gt=0, le=1000)
    """What each node may spend; then it stops contributing. Null, with `noise` given: it is counted, without an end."""
    delta: float = Field(default=1e-5, gt=0, lt=0.1)
    """The chance with which the promise may fail; well below one over the number of samples."""
    parts: int | None = Field(default=None, ge=1, le=10_000)
    """With unit sample: into how many parts the training data is cut, one for each node that joins, in order; null for
    `membership.min_nodes`. Nodes that join later have no part, and follow only."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.noise is None and self.epsilon is None:
            raise ValueError("give epsilon, or noise, or both")
        return self
