"""Two coordinators on one store, as real processes: the leader is killed, the other goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import httpx
import pytest

from .fleet import Fleet, tiny
from .processes import Child, free_port
from .referee import check_log, stored_log

NAMES = ("ada", "ben")


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("failover")
    with Fleet(folder, store=f"sqlite:///{folder}/store.sqlite") as fleet:
        fleet.place.append("--shared")
        yield fleet


def _stand_by(fleet: Fleet) -> Child:
    """Another coordinator with the same key and a home of its own, once it knows who leads, and tells whoever asks."""
    home = fleet.home_of("second")
    (home / "coordinator").mkdir(parents=True, mode=0o700)
    shutil.copy(fleet.home / "coordinator" / "key", home / "coordinator" / "key")
    shutil.copy(fleet.home / "coordinator" / "admin-token", home / "coordinator" / "admin-token")
    ports = ["--control-port", str(free_port()), "--blob-port", str(free_port())]
    api = free_port()
    place = ["--home", str(home), "--store", fleet.store_url, "--shared", "--port", str(api)]
    child = fleet._start("second", ["serve", *place, *ports], "")
    fleet.until(lambda: "standing by" in child.out.read_text(), 40, "the second coordinator stands by")
    answer = httpx.get(f"http://127.0.0.1:{api}/api/v1/runs", timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (503, "SH-LEAD-03")
    return child


def _follow(fleet: Fleet, child: Child) -> None:
    """Ask the second coordinator from now on, once it serves."""
    fleet.until(lambda: "ready" in child.out.read_text().splitlines(), 20, "the second coordinator leads")
    lines = child.out.read_text().splitlines()
    fleet._api.base_url = next(line.split()[1] for line in lines if line.startswith("  api "))


def test_another_coordinator_takes_over(pair: Fleet) -> None:
    pair.serve(tiny(membership={"min_nodes": 2}))
    second = _stand_by(pair)
    for name in NAMES:
        pair.join(name)
    for name in NAMES:
        pair.contributes(name)

    assert pair.coordinator is not None
    pair.coordinator.kill()
    known = [link.hash for link in stored_log(pair)]
    _follow(pair, second)
    for name in NAMES:
        pair.contributes(name, after=len(known), within_s=60)

    # A node that starts again finds the second too, though its ticket is older than that.
    pair.nodes["ada"].kill()
    pair.join("ada")
    pair.contributes("ada", after=pair.length(), within_s=60)

    links = stored_log(pair)
    check_log(links)
    assert [link.hash for link in links[: len(known)]] == known, "what the first one wrote stands"
    assert len({link.entry.term for link in links}) >= 2


def test_two_with_one_store_need_one_key(pair: Fleet) -> None:
    pair.serve(tiny())
    ports = ["--control-port", str(free_port()), "--blob-port", str(free_port())]
    home = ["--home", str(pair.home_of("stranger")), "--port", "0"]
    stranger = pair._start("stranger", ["serve", *home, "--store", pair.store_url, "--shared", *ports], "")
    assert stranger.ended(40) == 1, "it could never lead, and would say that it stands by"
    assert "SH-KEY-02" in stranger.err.read_text()
