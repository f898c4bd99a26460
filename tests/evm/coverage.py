"""Which lines and branches of the contracts the tests run on the EVM: `python tests/evm/coverage.py [LEAST_PERCENT]`.

Compiles without optimisation, runs the unit tests with every transaction traced, and maps what ran back to the source.
Needs node and `npm install --prefix contracts --no-package-lock`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VARIABLE = "SHOAL_EVM_TRACES"
TESTS = ("test_registry.py", "test_jobs.py", "test_roots.py")
JUMPI, PUSH1, PUSH32 = 0x57, 0x60, 0x7F
QUIET = {"disableStack": True, "disableStorage": True, "enableMemory": False, "enableReturnData": False}


OPTIONS: tuple[str, ...] = ("--disable-code-size-limit",) if "SHOAL_CONTRACTS" in os.environ else ()
OPTIONS += ("--steps-tracing",) if VARIABLE in os.environ else ()
"""What the local chain has to be started with, for a build that is not optimised and for traces of it."""


def watcher(evm: Any) -> Callable[[Any, str | dict[str, Any]], None]:
    """Appends the steps of every transaction and every call to a file, where coverage asked for it."""
    target = os.environ.get(VARIABLE)
    if target is None:
        return lambda interface, what: None

    def watch(interface: Any, what: str | dict[str, Any]) -> None:
        call = (
            ("debug_traceTransaction", what) if isinstance(what, str) else ("debug_traceCall", what, "latest")
        )
        steps = evm.rpc.call(*call, QUIET)["structLogs"]
        own = [step["pc"] for step in steps if step["depth"] == 1]
        with open(target, "a", encoding="utf-8") as file:
            file.write(json.dumps([interface.name, own]) + "\n")

    return watch


class Code:
    """A contract's runtime code, with the source line of every instruction."""

    def __init__(self, artifact: dict[str, Any]) -> None:
        self.sources = {int(key): name for key, name in artifact["sources"].items()}
        self.pcs, self.jumps = _instructions(bytes.fromhex(_without_links(artifact["runtime"])))
        self.places = _places(artifact["sourceMap"], len(self.pcs))
        self.lines = {
            name: _line_starts((ROOT / "contracts" / name).read_text("utf-8"))
            for name in self.sources.values()
            if name.startswith("src/")
        }

    def line(self, index: int) -> tuple[str, int] | None:
        """Where an instruction comes from, if that is one line of ours."""
        start, length, source = self.places[index]
        name = self.sources.get(source, "")
        if name not in self.lines:
            return None
        first, last = _at(self.lines[name], start), _at(self.lines[name], start + length - 1)
        return (name, first) if last - first <= 1 else None


def _without_links(runtime: str) -> str:
    return runtime.replace("_", "0").replace("$", "0")


def _instructions(code: bytes) -> tuple[list[int], dict[int, int]]:
    pcs, jumps, pc = [], {}, 0
    while pc < len(code):
        pcs.append(pc)
        if code[pc] == JUMPI:
            jumps[pc] = len(pcs) - 1
        pc += 1 + (code[pc] - PUSH1 + 1 if PUSH1 <= code[pc] <= PUSH32 else 0)
    return pcs, jumps


def _places(compressed: str, count: int) -> list[tuple[int, int, int]]:
    """solc's source map: start:length:file:..., empty where it is as before."""
    places, now = [], [0, 0, -1]
    for item in compressed.split(";"):
        for place, value in enumerate(item.split(":")[:3]):
            if value:
                now[place] = int(value)
        places.append((now[0], now[1], now[2]))
    return (places + [(0, 0, -1)] * count)[:count]


def _line_starts(text: str) -> list[int]:
    data, starts = text.encode(), [0]
    starts += [place + 1 for place, byte in enumerate(data) if byte == 10]
    return starts


def _at(starts: list[int], offset: int) -> int:
    return sum(1 for start in starts if start <= offset)


def report(folder: Path, traces: Path) -> float:
    """Print what was not run; the percentage of lines that was."""
    names = ("NodeRegistry", "TrainingRewards")
    codes = {name: Code(json.loads((folder / f"{name}.json").read_text())) for name in names}
    ran: dict[str, set[int]] = {name: set() for name in names}
    went: dict[str, set[tuple[int, bool]]] = {name: set() for name in names}
    for text in traces.read_text("utf-8").splitlines():
        name, steps = json.loads(text)
        if name not in codes:
            continue
        ran[name].update(steps)
        for here, then in itertools.pairwise(steps):
            if here in codes[name].jumps:
                went[name].add((here, then == here + 1))
    wanted: set[tuple[str, int]] = set()
    met: set[tuple[str, int]] = set()
    branches: set[tuple[str, int, int, bool]] = set()
    taken: set[tuple[str, int, int, bool]] = set()
    for name, code in codes.items():
        for index, pc in enumerate(code.pcs):
            line = code.line(index)
            if line is None:
                continue
            wanted.add(line)
            if pc in ran[name]:
                met.add(line)
            if pc in code.jumps and _is_condition(line):
                for way in (True, False):
                    branch = (*line, code.places[index][0], way)
                    branches.add(branch)
                    if (pc, way) in went[name]:
                        taken.add(branch)
    for file, number in sorted(wanted - met):
        print(f"not run: contracts/{file}:{number}")
    for file, number, _, _ in sorted(branches - taken):
        print(f"one way only: contracts/{file}:{number}")
    lines, ways = 100 * len(met) / len(wanted), 100 * len(taken) / max(1, len(branches))
    print(f"lines {lines:.1f}% of {len(wanted)}, branches {ways:.1f}% of {len(branches)}")
    return lines


def _is_condition(line: tuple[str, int]) -> bool:
    """A branch that was written as one; the compiler adds its own for arithmetic and decoding."""
    text = (ROOT / "contracts" / line[0]).read_text("utf-8").splitlines()[line[1] - 1]
    return "if (" in text or "?" in text or "for (" in text


def main() -> int:
    least = float(sys.argv[1]) if len(sys.argv) > 1 else 95.0
    with tempfile.TemporaryDirectory() as text:
        folder, traces = Path(text), Path(text) / "traces"
        environment = {**os.environ, "COVERAGE": "1", "SHOAL_CONTRACTS": text, VARIABLE: str(traces)}
        subprocess.run(["node", "build.cjs", text], cwd=ROOT / "contracts", env=environment, check=True)
        tests = [str(Path(__file__).parent / name) for name in TESTS]
        subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], env=environment, check=True, cwd=ROOT)
        return 0 if report(folder, traces) >= least else 1


if __name__ == "__main__":
    sys.exit(main())
