"""`shoal log show | verify | replay` on what a real run leaves behind, sound and damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.apps import progress
from shoal.apps.cli import WRONG_LINE, app, find
from shoal.apps.exporting import export_run
from shoal.apps.logs_reading import _words
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.runlog.chain import Equivocation, make_link, read_link
from shoal.runlog.entries import Assignment, DataRange, Plan, Stopped
from shoal.runlog.evidence import encode_proof
from shoal.runlog.files import FileLogStore
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.keys import load_or_create_identity

from .runs_to_join import tiny_run
from .serving import serving


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Homes of a coordinator and a node after a run of three rounds."""
    folder = tmp_path_factory.mktemp("finished")
    with tiny_run(folder) as (_, ticket):
        options = ["--home", str(folder / "ann"), "--device", "cpu", "--name", "ann", "--yes"]
        assert CliRunner().invoke(app, ["join", ticket, *options]).exit_code == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def _log(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["log", *arguments])


def _code(result: Any) -> str:
    found = find(result.exception, ShoalError)
    assert isinstance(found, ShoalError), result.output
    return found.code


def _homes(folder: Path) -> list[list[str]]:
    return [["--home", str(folder / "coordinator")], ["--home", str(folder / "ann"), "--node"]]


def _log_file(folder: Path) -> Path:
    (path,) = (folder / "ann" / "node" / "runs").glob("*/logs/*.log")
    return path


def test_show_is_for_people_and_for_tools(finished: Path) -> None:
    for home in _homes(finished):
        lines = _log("show", *home).output.splitlines()
        assert "genesis" in lines[0] and "parameters" in lines[0]
        assert any("seal" in line and "ann" in line for line in lines)
        items = [json.loads(line) for line in _log("show", "--json", *home).output.splitlines()]
        assert [item["position"] for item in items] == list(range(len(lines)))


def test_a_plan_says_why_each_has_its_work() -> None:
    def work(number: int, thin: int = 1) -> Assignment:
        node = NodeId(f"{number:064x}"[::-1])
        return Assignment(
            node=node, data=DataRange(0, 8), steps=1, batch=8, thin=thin, reason=f"reason {number}"
        )

    def shown(*members: Assignment) -> str:
        plan = Plan(round=3, step=0, members=members, deadline_ms=1, fragments=(0,), reason="few")
        return _words(plan, {members[0].node: "ann (1)"})

    assert shown(work(1), work(2)) == "round 3: few; ann (1): reason 1; 20000000: reason 2"
    assert shown(*map(work, range(1, 20)), work(21, thin=2)) == "round 3: few; 51000000: reason 21"


def test_a_sound_log_verifies_and_nothing_is_touched(finished: Path) -> None:
    before = _fingerprint(finished)
    heads = set()
    for home in _homes(finished):
        result = _log("verify", *home)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("ok: ")
        heads.add(result.output)
        assert json.loads(_log("verify", "--json", *home).output)["entries"] > 5
    assert len(heads) == 1, "the node's copy is the coordinator's log"
    assert _fingerprint(finished) == before


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it is is said at every step."""
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "SAID_S", 0.0)


def test_an_exported_language_model_says_how_it_loads(
    finished: Path, tmp_path: Path, told_at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(finished / "coordinator") as found, found.client() as api:
        exported = export_run(api, api.runs()[0].run, tmp_path)
        entries = len(api.log(exported.run))
    told = capsys.readouterr().err
    assert re.search(r"\] (\S+ .?B) of \1, ", told) and f"] {entries} of {entries} entries, " in told
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert exported.loads_with == "transformers" and "from transformers import" in readme
    code = readme.split("```python")[1].split("```")[0]
    with contextlib.chdir(tmp_path):
        exec(compile(code, "README.md", "exec"), names := {})
    assert names["model"].config.vocab_size and names["tokenizer"]("fox")["input_ids"]


def test_replay_gives_the_attested_state(finished: Path) -> None:
    states = set()
    for home in _homes(finished):
        result = _log("replay", *home)
        assert result.exit_code == 0, result.output
        last = result.output.splitlines()[-1]
        assert last.startswith("state ") and last.endswith("matches the attested one")
        states.add(last)
        replayed = json.loads(_log("replay", "--json", *home).output)
        assert (replayed["rounds"], replayed["begun_at"]) == (3, 0)
    assert len(states) == 1


def test_replay_says_how_far_it_is(finished: Path, told_at_once: None) -> None:
    result = _log("replay", *_homes(finished)[0])
    assert "] 2 of 3 rounds, " in result.stderr and "of 3 rounds" not in result.stdout


def test_a_run_is_named_by_its_beginning(finished: Path) -> None:
    home = _homes(finished)[0]
    run = json.loads(_log("verify", "--json", *home).output)["run"]
    assert _log("verify", run[:6], *home).exit_code == 0
    assert _code(_log("verify", "zz", *home)) == "SH-API-02"
    assert _code(_log("verify", "--home", str(finished / "nowhere"))) == "SH-LOG-04"
    assert _log("verify", "--file", str(_log_file(finished))).exit_code == 0
    assert _code(_log("verify", "--file", str(finished / "text.txt"))) == "SH-LOG-04"


def test_an_altered_entry_is_named(copy: Path) -> None:
    store = copy / "coordinator" / "coordinator" / "store.sqlite"
    with sqlite3.connect(store) as database:
        (entry,) = database.execute("SELECT entry FROM shoal_entries WHERE position = 3").fetchone()
        damaged = bytearray(entry)
        damaged[len(damaged) // 2] ^= 1
        database.execute("UPDATE shoal_entries SET entry = ? WHERE position = 3", (bytes(damaged),))
    result = _log("verify", *_homes(copy)[0])
    assert result.exit_code == 1
    assert _code(result) == "SH-LOG-01"
    assert "entry 3" in str(result.exception)


def test_missing_and_swapped_entries_are_named(copy: Path) -> None:
    store = copy / "coordinator" / "coordinator" / "store.sqlite"
    with sqlite3.connect(store) as database:
        rows = dict(database.execute("SELECT position, entry FROM shoal_entries WHERE position IN (4, 5)"))
        for here, there in ((4, 5), (5, 4)):
            database.execute("UPDATE shoal_entries SET entry = ? WHERE position = ?", (rows[there], here))
    assert "entry 4" in str(_log("verify", *_homes(copy)[0]).exception)
    with sqlite3.connect(store) as database:
        database.execute("DELETE FROM shoal_entries WHERE position = 4")
    missing = _log("verify", *_homes(copy)[0])
    assert _code(missing) == "SH-LOG-01"
    assert "entry 4" in str(missing.exception)


@pytest.mark.parametrize("command", ["verify", "replay", "show"])
def test_a_log_without_its_end_is_found(copy: Path, command: str) -> None:
    store = copy / "coordinator" / "coordinator" / "store.sqlite"
    with sqlite3.connect(store) as database:
        (last,) = database.execute("SELECT MAX(position) FROM shoal_entries").fetchone()
        database.execute("DELETE FROM shoal_entries WHERE position = ?", (last,))
    found = _log(command, *_homes(copy)[0])
    assert _code(found) == "SH-LOG-01"
    assert f"entry {last} of run" in str(found.exception)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.999])
def test_a_flipped_byte_in_a_nodes_log_is_found_and_left_alone(copy: Path, place: float) -> None:
    path = _log_file(copy)
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(data)
    result = _log("verify", *_homes(copy)[1])
    assert _code(result) == "SH-LOG-01"
    assert "entry " in str(result.exception)
    assert path.read_bytes() == bytes(data)


def test_a_flipped_byte_in_any_blob_is_named(copy: Path) -> None:
    for home, where in zip(_homes(copy), ("coordinator/coordinator", "ann/node"), strict=True):
        for path in sorted(copy.glob(f"{where}/runs/*/blobs/*")):
            sound = path.read_bytes()
            data = bytearray(sound)
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            result = _log("verify", *home)
            assert _code(result) == "SH-BLOB-02"
            assert path.name in str(result.exception)
            assert path.read_bytes() == data, "verify only looks"
            path.write_bytes(sound)


def test_a_proof_against_the_coordinator_is_checked(finished: Path, tmp_path: Path) -> None:
    key = load_or_create_identity(finished / "coordinator" / "coordinator" / "key")
    log = FileLogStore(FileDisk(_log_file(finished).parents[1]), lambda point: None)
    genesis = read_link(next(log.read(RunId(_log_file(finished).stem))))
    one, two = (
        make_link(key, genesis.entry.run, genesis.head, 1, 0, Stopped(reason=reason)).encoded
        for reason in ("enough", "go on")
    )
    path = tmp_path / "proof.msgpack"
    for home in _homes(finished):
        path.write_bytes(encode_proof(Equivocation(one, two)))
        held = _log("verify", *home, "--proof", str(path))
        assert held.exit_code == 0, held.output
        assert held.output.startswith("the proof holds") and "position 1" in held.output
        path.write_bytes(encode_proof(Equivocation(one, one)))
        empty = _log("verify", "--json", *home, "--proof", str(path))
        assert empty.exit_code == 1 and json.loads(empty.output)["holds"] is False
    nowhere = _log("verify", *_homes(finished)[0], "--proof", str(tmp_path / "nowhere"))
    assert find(nowhere.exception, ShoalError).code == WRONG_LINE


def test_a_proof_on_a_nodes_machine_asks_for_the_nodes_copy(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "proof.msgpack"
    path.write_bytes(b"")
    said = {}
    for home in (finished / "ann", finished / "nowhere"):
        error = find(_log("verify", "--home", str(home), "--proof", str(path)).exception, ShoalError)
        assert error.code == "SH-LOG-04" and "unless --node or --file is given" in error.cause
        said[home.name] = error.next_step
    assert said["ann"] == "add --node for a node's copy" and "check --home" in said["nowhere"]


def _fingerprint(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def test_a_home_without_runs_is_not_asked_to_name_one(tmp_path: Path) -> None:
    with serving(tmp_path):
        pass
    refused = find(_log("verify", "ab", "--home", str(tmp_path)).exception, ShoalError)
    assert refused.code == "SH-API-02" and "no runs" in refused.cause and "one of" not in refused.next_step
