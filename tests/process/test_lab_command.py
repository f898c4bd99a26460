"""`shoal lab run` as a person uses it; whatever ends it, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

SHOAL = [sys.executable, "-m", "shoal.apps.cli"]
FLEET = """
hosts:
  - {name: a, up: 50 Mbit/s, down: 50 Mbit/s, latency: 2 ms}
  - {name: b, count: 2, up: 50 Mbit/s, down: 50 Mbit/s, latency: 2 ms}
"""
A_USER = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
"""Someone without privileges, who may read what root may: the suite's interpreter can lie in root's home."""
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def run(words: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **more)  # type: ignore[call-overload,no-any-return]


def test_every_host_runs_it_and_the_report_says_how_it_was(fleet: Path) -> None:
    done = run([*SHOAL, "lab", "run", str(fleet), "--json", "--", "sh", "-c", "echo I am $SHOAL_LAB_HOST"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(line for line in done.stderr.splitlines() if "I am" in line) == [
        "[a] I am a",
        "[b-1] I am b-1",
        "[b-2] I am b-2",
    ]
    assert [host["codes"] for host in report["hosts"]] == [[0], [0], [0]]
    assert {item["what"] for item in report["accuracy"]} == {"rtt_ms", "rate_mbit", "loss_percent"}
    assert report["valid"] == (not report["reasons"])
    assert report["emulator"] in ("netem", "native") and report["privileged"] and report["congestion"]


def test_statuses_files_and_a_choice_of_hosts(fleet: Path, tmp_path: Path) -> None:
    words = [*SHOAL, "lab", "run", str(fleet), "--on", "b-2", "--output", str(tmp_path / "said")]
    done = run([*words, "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
    assert done.returncode == 1
    assert (tmp_path / "said" / "b-2.out").read_text() == "out\n"
    assert (tmp_path / "said" / "b-2.err").read_text() == "err\n"
    assert "b-2              7 " in done.stdout and "3 hosts, 1 failed" in done.stdout


def test_when_the_time_is_over_everything_ends(fleet: Path) -> None:
    done = run([*SHOAL, "lab", "run", str(fleet), "--timeout", "1s", "--", "sleep", "1000"])
    assert done.returncode == 124
    assert "3 hosts, 3 failed" in done.stdout


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_the_runner(fleet: Path, how: signal.Signals) -> None:
    before = networks()
    runner = start(fleet)
    inside = psutil.Process(runner.pid).children(recursive=True)
    assert len([process for process in inside if process.name() == "sleep"]) >= 3
    assert len(networks()) > len(before)
    runner.send_signal(how)
    runner.communicate(timeout=30)
    assert runner.returncode == (130 if how == signal.SIGINT else -how)
    assert psutil.wait_procs(inside, timeout=20)[1] == []
    assert networks() <= before


def test_the_next_lab_removes_what_a_killed_runner_left(fleet: Path, tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    there = {**os.environ, "TMPDIR": str(place)}
    killed = start(fleet, env=there)
    left = set(place.iterdir())
    living = start(fleet, env=there)
    owned = set(place.iterdir()) - left
    killed.kill()
    killed.communicate(timeout=30)
    assert len(left) == len(owned) == 1 and set(place.iterdir()) == left | owned
    assert run([*SHOAL, "lab", "run", str(fleet), "--on", "a", "--", "true"], env=there).returncode == 0
    assert set(place.iterdir()) == owned
    living.send_signal(signal.SIGINT)
    living.communicate(timeout=30)
    assert set(place.iterdir()) == set()


def start(fleet: Path, **more: Any) -> subprocess.Popen[str]:
    """A runner whose programs have begun, and do not end by themselves."""
    runner = subprocess.Popen(
        [*SHOAL, "lab", "run", str(fleet), "--", "sh", "-c", "setsid sleep 1000 & echo begun; sleep 1000"],
        stdout=subprocess.PIPE,
        text=True,
        # Shells start what runs in their background with Ctrl-C ignored, and so everything below it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **more,
    )
    assert runner.stdout is not None
    begun = [runner.stdout.readline() for _ in range(3)]
    assert all("begun" in line for line in begun)
    return runner


def networks() -> set[str]:
    """Every network namespace that a process is in."""
    found = set()
    for process in psutil.process_iter():
        try:
            found.add(str(Path(f"/proc/{process.pid}/ns/net").readlink()))
        except OSError:
            continue
    return found


def test_a_user_without_privileges_has_a_lab_too(fleet: Path) -> None:
    done = run([*A_USER, *SHOAL, "lab", "run", str(fleet), "--json", "--", "ls", "/proc/1"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["privileged"] is False


@pytest.mark.parametrize("emulator", ["native", "python"])
def test_without_a_tun_device_packets_go_through_sockets(fleet: Path, emulator: str) -> None:
    hidden = 'mount -t tmpfs none /dev/net && exec "$@"'
    words = [
        *SHOAL,
        "lab",
        "run",
        str(fleet),
        "--json",
        "--emulator",
        emulator,
        "--",
        "getent",
        "hosts",
        "b-2",
    ]
    done = run(["unshare", "-m", "sh", "-c", hidden, "sh", *A_USER, *words])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["doorway"], report["privileged"], report["emulator"]) == ("packet", False, emulator)
    rates = [item["measured"] for item in report["accuracy"] if item["what"] == "rate_mbit"]
    assert rates == pytest.approx([50] * len(rates), rel=0.2)


def test_where_no_namespace_can_be_had_it_says_so(fleet: Path) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = [*NO_CAPABILITIES, *SHOAL, "lab", "run", str(fleet), "--", "true"]
    done = run(["unshare", "-Ur", "sh", "-c", forbid, "sh", *words])
    assert done.returncode == 1
    assert "error SH-LAB-03" in done.stderr and "user namespace" in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_are_explained(fleet: Path) -> None:
    bad = fleet.with_name("bad.yaml")
    bad.write_text("hosts: [{name: a, up: 100}]")
    for words, code in (
        (["run", "nowhere.yaml", "--", "true"], "SH-LAB-01"),
        (["run", str(bad), "--", "true"], "SH-LAB-02"),
        (["run", str(fleet), "--on", "nobody", "--", "true"], "SH-LAB-02"),
        (["run", str(fleet)], "SH-LAB-02"),
        (["scaling", str(fleet)], "SH-LAB-02"),
    ):
        done = run([*SHOAL, "lab", *words])
        assert done.returncode == 1 and f"error {code}" in done.stderr, (words, done.stderr)
