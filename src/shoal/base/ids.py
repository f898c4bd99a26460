"""Distinct ids are distinct types, so that a node cannot be passed where a blob is meant."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)
"""40 hex digits: the hash of a node's public key. The coordinator is a node too."""

RunId = NewType("RunId", str)
"""32 hex digits: drawn once, when the run is submitted, and named in every message and entry."""

BlobId = NewType("BlobId", str)
"""64 hex digits: the root over a blob's chunk hashes (see `replica.blobs`)."""
