"""An API that other machines can reach speaks TLS, and nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from .processes import Child, eventually, free_port, run_shoal


def test_beyond_this_machine_the_api_is_encrypted(tmp_path: Path) -> None:
    port = free_port()
    home = ["--home", str(tmp_path)]
    ports = ["--port", str(port), "--control-port", "0", "--blob-port", "0"]
    child = Child(["serve", *home, "--api-host", "0.0.0.0", *ports], tmp_path / "log")
    try:
        eventually(lambda: "\nready\n" in child.out.read_text() or not child.alive, 60, "ready")
        assert "https://" in child.out.read_text(), child.said()
        listed = run_shoal(["run", "list", *home, "--json"])
        assert listed.status == 0 and listed.out.strip() == "[]", listed
        trust = ssl.create_default_context(cafile=str(tmp_path / "coordinator" / "api-cert.pem"))
        assert httpx.get(f"https://127.0.0.1:{port}/healthz", verify=trust, trust_env=False).json()["ok"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
        assert (tmp_path / "coordinator" / "api-key.pem").stat().st_mode & 0o077 == 0
    finally:
        child.kill()
