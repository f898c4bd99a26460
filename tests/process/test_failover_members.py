"""Coordinators with a store each, as real processes: killed with SIGKILL, one takes over what a majority keeps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import httpx
import pytest

from shoal.apps.home import Home
from shoal.runlog.chain import Link, read_link
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import Fleet, tiny
from .processes import Child, free_port, run_shoal
from .referee import check_copies, check_log

NAMES = ("ada", "ben")


class Two(Fleet):
    """Two coordinators, each with a home and an SQLite file of its own."""

    def begin(self) -> None:
        """Both, then the nodes: the run begins once both answer."""
        self.second_ports = free_port(), free_port()
        self.addresses = [f"127.0.0.1:{port}" for port in (self.control_port, self.second_ports[0])]
        (self.home / "coordinator").mkdir(parents=True, mode=0o700)
        self._start_coordinator(
            tiny(membership={"min_nodes": 2, "coordinators": self.addresses}), failpoint="", port=0
        )
        key = self.home / "coordinator" / "key"
        self.until(key.exists, 40, "the key")
        second = self.home_of("second") / "coordinator"
        second.mkdir(parents=True, mode=0o700)
        for name in ("key", "admin-token"):
            self.until((self.home / "coordinator" / name).exists, 40, name)
            shutil.copy(self.home / "coordinator" / name, second / name)
        self.second = self.serve_second("--standby-of", self.addresses[0])
        self._listen()

    def serve_second(self, *more: str) -> Child:
        control, blobs = self.second_ports
        place = ["--home", str(self.home_of("second")), "--port", "0"]
        ports = ["--control-port", str(control), "--blob-port", str(blobs)]
        return self._start("second", ["serve", *place, *ports, *more], "")

    def _listen(self) -> None:
        """Ask the first one, once it leads."""
        assert self.coordinator is not None
        out = self.coordinator.out
        self.until(lambda: "ready" in out.read_text().splitlines(), 60, "both coordinators, and a run")
        lines = out.read_text().splitlines()
        self.run = next(line.split()[1] for line in lines if line.startswith("  run "))  # type: ignore[assignment]
        self.ticket = next(line.split()[2] for line in lines if line.startswith("  shoal join "))
        self.ask(self.coordinator)

    def ask(self, child: Child) -> None:
        """Ask this coordinator from now on."""
        lines = child.out.read_text().splitlines()
        self._api.base_url = httpx.URL([line.split()[1] for line in lines if line.startswith("  api ")][-1])
        token = (self.home / "coordinator" / "admin-token").read_text().strip()
        self._api.headers["Authorization"] = f"Bearer {token}"

    def leads(self, child: Child) -> bool:
        self.ask(child)
        try:
            return self._api.get(f"/api/v1/runs/{self.run}").status_code == 200
        except httpx.TransportError:
            return False

    def links(self, start: int = 0) -> list[Link]:
        """From the stores themselves: whoever leads may change."""
        return max(self.stored("first"), self.stored("second"), key=len)[start:]

    def stored(self, home: str) -> list[Link]:
        where = self.home if home == "first" else self.home_of(home)
        store = SqlLogStore(Home(where).store_url, create=False)
        try:
            return [read_link(entry) for entry in store.read(self.run)]
        finally:
            store.close()


@pytest.fixture
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    fleet = Two(tmp_path_factory.mktemp("members"))
    with fleet:
        yield fleet


def test_a_standby_with_its_own_store_takes_over(two: Two) -> None:
    two.begin()
    for name in NAMES:
        two.join(name)
    for name in NAMES:
        two.contributes(name)

    assert two.coordinator is not None
    two.coordinator.kill()
    known = [link.hash for link in two.stored("first")]
    two.until(lambda: two.leads(two.second), 60, "the second coordinator leads")
    for name in NAMES:
        two.contributes(name, after=len(known), within_s=60)

    # The first comes back, learns what happened, and takes over in its turn.
    first = two._start("coordinator", ["serve", *two.place, "--port", "0", *_ports(two)], "")
    reached = len(two.stored("second"))
    two.until(lambda: len(two.stored("first")) >= reached, 60, "the first one follows")
    two.second.kill()
    two.until(lambda: first.out.read_text().splitlines().count("ready") > 1, 60, "its address")
    two.until(lambda: two.leads(first), 60, "the first coordinator leads again")
    length = len(two.stored("second"))
    for name in NAMES:
        two.contributes(name, after=length, within_s=60)

    first.kill()
    links = two.stored("first")
    check_log(links)
    assert [link.hash for link in links[: len(known)]] == known, "what the first one wrote stands"
    theirs = [link.hash for link in two.stored("second")]
    assert [link.hash for link in links[: len(theirs)]] == theirs, "the two logs are one"
    assert len({link.entry.term for link in links}) >= 3
    for child in two.nodes.values():
        child.kill()
    check_copies(two, links)


def test_without_a_majority_nothing_is_sealed_and_everybody_is_told_why(two: Two) -> None:
    two.begin()
    for name in NAMES:
        two.join(name)
    for name in NAMES:
        two.contributes(name)
    two.ask(two.second)
    told = two._api.get("/api/v1/runs").json()
    assert told["code"] == "SH-LEAD-03" and two.addresses[0] in told["detail"], (
        "it has runs, and says who leads"
    )

    assert two.coordinator is not None
    gone = two.addresses[0], two.node_id("ada")[:12]
    for child in (two.coordinator, two.nodes["ada"]):
        child.kill()
    two.until(lambda: "nobody_leads" in two.second.err.read_text(), 60, "a word on why nobody leads")

    def told_over_http() -> dict[str, str]:
        answer: dict[str, str] = two._api.get(f"/api/v1/runs/{two.run}").json()
        return answer

    # Its copy may have ended before the nodes came: it learns of them from the one that is left.
    two.until(lambda: "2 here" in told_over_http()["detail"], 60, "a word on two of four voters")
    sealed, told = len(two.stored("second")), told_over_http()
    assert told["code"] == "SH-LEAD-02" and all(who in told["detail"] for who in gone), told
    two.until(lambda: all(who in two.second.err.read_text() for who in gone), 60, "both in its log")
    doctor = run_shoal(["doctor", two.ticket, "--home", str(two.home_of("ben"))])
    assert "first failure: token and run (SH-LEAD-02)" in doctor.out + doctor.err, doctor
    assert len(two.stored("second")) == sealed

    two.join("ada")
    two.contributes("ada", after=sealed, within_s=60)


def _ports(two: Two) -> list[str]:
    return ["--control-port", str(two.control_port), "--blob-port", str(two.blob_port)]
