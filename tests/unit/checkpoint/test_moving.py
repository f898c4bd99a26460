"""Exports that others load, and imports that believe nothing but the signed log."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpoint.homes import branch, make_home
from checkpoint.servers import ipfs_node, s3_server, web_server
from shoal.apps import progress
from shoal.apps.ckpt_moving import export_vertex, import_from, write_torrent
from shoal.apps.ckpt_reading import Opened, opened
from shoal.base.errors import ShoalError
from shoal.checkpoint.folders import FORMS, read_folder
from shoal.checkpoint.places import inside, open_place
from shoal.checkpoint.torrents import fetch_torrent, library, seeding
from shoal.checkpoint.vertices import Vertex
from shoal.worlds.real.sqlstore import SqlLogStore


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("moving"))


@pytest.fixture
def here(home: Path) -> Iterator[Opened]:
    with opened(home, None) as found:
        yield found


@pytest.fixture
def vertex(here: Opened) -> Vertex:
    return here.library.dag().vertices[0]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Opened]:
    """Another coordinator's home, without any run."""
    (tmp_path / "elsewhere" / "coordinator").mkdir(parents=True)
    SqlLogStore(f"sqlite:///{tmp_path / 'elsewhere' / 'coordinator' / 'store.sqlite'}").close()
    with opened(tmp_path / "elsewhere", None) as found:
        yield found


def export(here: Opened, vertex: Vertex, to: str | Path, form: str, *, data: bool = False) -> str:
    return str(export_vertex(here, vertex, str(to), form, data=data, unattested=False)["address"])


@pytest.mark.parametrize("form", sorted(FORMS))
def test_an_export_comes_back_as_the_same_state(
    here: Opened, vertex: Vertex, elsewhere: Opened, tmp_path: Path, form: str
) -> None:
    export(here, vertex, tmp_path / "out", form, data=True)
    told = import_from(elsewhere, str(tmp_path / "out"))
    assert told["vertex"] == vertex.id and told["model"] == vertex.model and told["quorum"]
    (found,) = elsewhere.library.dag().vertices
    state, mine = elsewhere.library.state_of(found), here.library.state_of(vertex)
    assert torch.equal(state.params, mine.params) and state.slots.keys() == mine.slots.keys()
    fork = branch(elsewhere, found)
    assert fork.parents == (vertex.id,) and elsewhere.library.state_of(fork).params.equal(mine.params)


def test_transformers_loads_the_hugging_face_folder(here: Opened, vertex: Vertex, tmp_path: Path) -> None:
    export(here, vertex, tmp_path / "hf", "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert sum(p.numel() for p in model.parameters()) == here.library.state_of(vertex).layout.numel


def test_torch_loads_the_distributed_checkpoint(here: Opened, vertex: Vertex, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    export(here, vertex, tmp_path / "dcp", "dcp")
    state = here.library.state_of(vertex)
    spec = state.layout.tensors[0]
    wanted = {f"model.{spec.name}": torch.zeros(spec.shape)}
    dcp.load(wanted, checkpoint_id=tmp_path / "dcp", no_dist=True)
    expected = state.params[spec.offset : spec.offset + spec.numel].view(spec.shape)
    assert torch.equal(wanted[f"model.{spec.name}"], expected)


@pytest.mark.parametrize("name", ["shoal/log", "shoal/state", "shoal/vertex.json"])
def test_what_was_altered_is_not_taken(here: Opened, vertex: Vertex, tmp_path: Path, name: str) -> None:
    export(here, vertex, tmp_path / "out", "state")
    path = tmp_path / "out" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if name == "shoal/vertex.json":
        path.write_text(path.read_text().replace(vertex.id, "0" * 32))
    with pytest.raises(ShoalError, match="SH-CKPT-05"):
        read_folder(tmp_path / "out")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], int]:
    """How often it was said that all bytes are there, since it was last asked."""
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "SAID_S", 0.0)
    return lambda: len(re.findall(r"\[#{24}\] (\S+ .?B) of \1, ", capsys.readouterr().err))


def test_a_bucket_gives_back_what_it_got(
    told: Callable[[], int],
    here: Opened,
    vertex: Vertex,
    elsewhere: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with s3_server() as address:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        where = export(here, vertex, "s3://models/shoal/first", "state")
        assert told(), "of what was sent"
        assert import_from(elsewhere, where)["vertex"] == vertex.id
        assert told(), "of what was brought"
        with pytest.raises(ShoalError, match="SH-CKPT-06"):
            import_from(elsewhere, "s3://models/shoal/other")


def test_an_ipfs_node_gives_back_what_it_got(
    told: Callable[[], int],
    here: Opened,
    vertex: Vertex,
    elsewhere: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ipfs_node() as address:
        monkeypatch.setenv("SHOAL_IPFS_API", address)
        where = export(here, vertex, "ipfs://", "hf")
        assert where.startswith("ipfs://") and len(where) > 20
        assert told(), "of what was sent"
        assert import_from(elsewhere, where)["model"] == vertex.model
        assert told(), "of what was brought"
    with pytest.raises(ShoalError, match="SH-CKPT-06"):
        import_from(elsewhere, where)


def test_a_web_seed_alone_is_enough(here: Opened, vertex: Vertex, elsewhere: Opened, tmp_path: Path) -> None:
    folder = tmp_path / "web" / "checkpoint"
    export(here, vertex, folder, "hf")
    with web_server(tmp_path / "web") as address:
        told = write_torrent(folder, tmp_path / "it.torrent", [address + "/"], [])
        assert "urn:btmh:" in told["magnet"] and "urn:btih:" not in told["magnet"]
        assert import_from(elsewhere, str(tmp_path / "it.torrent"))["vertex"] == vertex.id


def test_a_magnet_and_one_seeder_are_enough(here: Opened, vertex: Vertex, tmp_path: Path) -> None:
    folder = tmp_path / "seed" / "checkpoint"
    export(here, vertex, folder, "state")
    told = write_torrent(folder, tmp_path / "it.torrent", [], [])
    info = library().load_torrent_file(str(tmp_path / "it.torrent")).ti
    assert info.info_hashes().has_v2() and not info.info_hashes().has_v1()
    with seeding((tmp_path / "it.torrent").read_bytes(), folder.parent) as port:
        (tmp_path / "got").mkdir()
        fetch_torrent(told["magnet"], tmp_path / "got", [("127.0.0.1", port)])
    assert read_folder(tmp_path / "got").vertex.id == vertex.id


def test_names_from_elsewhere_stay_below_the_folder(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    for name in ("/etc/passwd", "../x", "a/../../x", ""):
        with pytest.raises(ShoalError, match="SH-CKPT-06"):
            inside(tmp_path, name)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="no such folder"):
        open_place(str(tmp_path / "nothing")).bring(tmp_path / "to")
    shutil.rmtree(tmp_path)
