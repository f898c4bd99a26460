"""How far honest re-runs on a GPU are from claims made on this CPU, and the other way round.

    python tests/numerics/audit_gpu.py [CLAIMS]

Prints one line for each setting, then the largest distance beside the tolerance. Not a test by itself: it needs a GPU.
"""

from __future__ import annotations

import sys

import torch

from shoal.apps.bench.audit_hardware import CODECS, MODELS, PRECISIONS, Hardware, measure
from shoal.audit.spec import AuditSpec


def main(claims: int) -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {claims} claims each")
    others = (
        Hardware("cuda", device="cuda"),
        Hardware("cuda, eighths of a batch", device="cuda", parts=8),
    )
    largest, count, accused = 0.0, 0, 0
    for model in MODELS:
        for codec in CODECS:
            for precision in PRECISIONS:
                for one in measure(model, codec, precision, others, claims):
                    middle = sorted(one.distances)[len(one.distances) // 2]
                    print(_line(one.model, one.codec, one.precision, one.hardware, middle, one.largest))
                    largest, count = max(largest, one.largest), count + len(one.distances)
                    accused += sum(distance > AuditSpec().tolerance for distance in one.distances)
    print(
        f"largest {largest:.3g} of {count}; tolerance {AuditSpec().tolerance:g}; {accused} would be accused"
    )


def _line(model: str, codec: str, precision: str, hardware: str, middle: float, largest: float) -> str:
    return f"{model:<7} {codec:<8} {precision:<5} {hardware:<24} median {middle:.2e} most {largest:.2e}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
