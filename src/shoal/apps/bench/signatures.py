"""What a signature takes: Ed25519 alone, and together with ML-DSA-65.

In flows a number of repetitions; out flow sizes and times. Invariant: each kind signs and checks statements of a
claim's length, and nothing that was checked is remembered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from shoal.apps.progress import tracked
from shoal.wire.identity import Identity, Signer, forget_checks, verify

CLAIM_BYTES = 600


def measure(times: int, say: Callable[[str], None]) -> dict[str, Any]:
    identity = Identity.generate()
    found: dict[str, Any] = {}
    for kind, signer in tracked((("ed25519", identity), ("hybrid", identity.hybrid)), "kinds"):
        say(f"{times} {kind} signatures, made and checked")
        found[kind] = _of(signer, times)
    found["keys_ms"] = 1000 * median(_timed(lambda: Identity.generate().hybrid) for _ in range(20))
    return found


def _of(signer: Signer, times: int) -> dict[str, Any]:
    making, checking, size = [], [], 0
    for _ in tracked(range(times), "signatures"):
        payload = os.urandom(CLAIM_BYTES)
        began = time.perf_counter()
        signature = signer.sign("Claim", payload)
        making.append(time.perf_counter() - began)
        size = len(signature)
        forget_checks()
        began = time.perf_counter()
        assert verify(signer.public, "Claim", payload, signature)
        checking.append(time.perf_counter() - began)
    return {
        "public_bytes": len(signer.public),
        "signature_bytes": size,
        "sign_ms": 1000 * median(making),
        "verify_ms": 1000 * median(checking),
    }


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began
