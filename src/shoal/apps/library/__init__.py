"""Shoal from a program of one's own: an existing PyTorch loop takes part in a run.

One line per file:
  joining      `join`: the loop's side, a node in the background
  hosting      `coordinate`: the organiser's side, a coordinator in the background
  loop         one model between two threads: the person's loop and the node
  optimizers   a torch optimiser's state <-> bytes
  background   a coroutine in a thread of its own
"""

from __future__ import annotations

from shoal.apps.library.hosting import Coordinating, coordinate
from shoal.apps.library.joining import Joined, join

__all__ = ["Coordinating", "Joined", "coordinate", "join"]
