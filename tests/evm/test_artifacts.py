"""The compiled contracts that are shipped are those of the sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .evm import ROOT


@pytest.mark.long
def test_compiling_again_gives_the_shipped_artifacts(tmp_path: Path) -> None:
    subprocess.run(
        ["node", "build.cjs", str(tmp_path)],
        cwd=ROOT / "contracts",
        check=True,
        capture_output=True,
        timeout=250,
    )
    shipped = ROOT / "src" / "shoal" / "chain" / "artifacts"
    for folder in (shipped, ROOT / "contracts" / "test" / "artifacts"):
        for path in sorted(folder.glob("*.json")):
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "run: node contracts/build.cjs"
