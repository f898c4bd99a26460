"""The rules of the code base that a machine can check: layers, lint, format, types. One run each."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RULES = {
    "imports point down the layers": [str(BIN / "lint-imports")],
    "ruff check": [str(BIN / "ruff"), "check", "src", "tests", "examples"],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "src", "tests", "examples"],
    "mypy strict": [str(BIN / "mypy")],
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    done = subprocess.run(RULES[rule], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{rule} does not hold:\n{(done.stdout + done.stderr)[-4000:]}"


def test_modules_are_small_and_say_what_they_are_for() -> None:
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        text = path.read_text("utf-8")
        assert not text.strip() or text.startswith('"""'), f"{path} has no docstring"


def test_nothing_unpickles_or_evaluates() -> None:
    forbidden = ("import pickle", "from pickle", "pickle.loads", " eval(", "torch.load(")
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        text = path.read_text("utf-8")
        found = [word for word in forbidden if word in text]
        assert not found, f"{path} uses {found}"
