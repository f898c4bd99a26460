"""A checkpoint's folder as a torrent: v2 only, with web seeds, made, seeded and fetched through `libtorrent`.

In flow a folder or a torrent's address; out flow torrent bytes and a magnet, or the folder. Invariant: the pieces are
verified by the torrent's own hash tree, and the checkpoint by its log after that.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.checkpoint.places import Moved, files_in, unheard, unreachable

GIVE_UP_S = 120.0
"""How long a download may go without a byte."""
LOOK_S = 0.05
PIECE_BYTES = 1 << 20
"""As large as our chunks. (With pieces of one block, libtorrent 2.1 fails on web seeds of several files.)"""
CREATOR = "shoal"


@dataclass(frozen=True, slots=True)
class Torrent:
    data: bytes
    """The content of a `.torrent` file."""
    magnet: str


def make_torrent(
    folder: Path, web_seeds: Sequence[str] = (), trackers: Sequence[str] = (), hashed: Moved = unheard
) -> Torrent:
    """A v2 torrent of a folder; `hashed` hears of how many of its pieces. A web seed is the address below which the
    folder lies by its name. Raises SH-CKPT-06 where `libtorrent` is not installed."""
    lt = library()
    entries = [
        lt.create_file_entry(f"{folder.name}/{path}", (folder / path).stat().st_size)
        for path in files_in(folder)
    ]
    made = lt.create_torrent(entries, PIECE_BYTES, lt.create_torrent.v2_only)
    for seed in web_seeds:
        made.add_url_seed(seed)
    for tracker in trackers:
        made.add_tracker(tracker)
    made.set_creator(CREATOR)
    pieces = made.num_pieces()
    lt.set_piece_hashes(made, str(folder.parent), lambda piece: hashed(piece + 1, pieces))
    data = bytes(lt.bencode(made.generate()))
    params = lt.load_torrent_buffer(data)
    return Torrent(data, str(lt.make_magnet_uri(params)))


def fetch_torrent(
    address: str, folder: Path, peers: Sequence[tuple[str, int]] = (), moved: Moved = unheard
) -> None:
    """Download a torrent (a magnet, or the path of a `.torrent` file) into an empty folder, without the name that it
    has in the torrent. Raises SH-CKPT-06 when nothing comes any more."""
    params = _params(address)
    landing = folder / ".arriving"
    landing.mkdir(parents=True)
    params.save_path = str(landing)
    with _session() as session:
        handle = session.add_torrent(params)
        for peer in peers:
            handle.connect_peer(peer)
        _until_whole(handle, address, moved)
        _until_written(session, handle, address)
    for top in list(landing.iterdir()):
        for item in list(top.iterdir()) if top.is_dir() else [top]:
            shutil.move(str(item), folder / item.name)
    shutil.rmtree(landing)


@contextlib.contextmanager
def seeding(torrent: bytes, parent: Path) -> Iterator[int]:
    """Give a torrent whose folder lies below `parent` to whoever asks; the port."""
    lt = library()
    params = lt.load_torrent_buffer(torrent)
    params.save_path = str(parent)
    params.flags |= lt.torrent_flags.seed_mode
    with _session() as session:
        session.add_torrent(params)
        yield int(session.listen_port())


class TorrentPlace:
    """A torrent as a place to fetch from; `shoal ckpt export --torrent` makes one."""

    def __init__(self, address: str, moved: Moved = unheard) -> None:
        self._address, self._moved = address, moved

    def send(self, folder: Path) -> str:
        raise unreachable(self._address, "a torrent is made beside a folder: export --torrent FILE")

    def bring(self, folder: Path) -> None:
        fetch_torrent(self._address, folder, moved=self._moved)


def library() -> Any:
    try:
        return importlib.import_module("libtorrent")
    except ImportError as error:
        raise ShoalError(
            "SH-CKPT-06", f"torrents need a package: {error}", "pip install 'shoal[places]'"
        ) from error


def _params(address: str) -> Any:
    lt = library()
    try:
        if address.startswith("magnet:"):
            return lt.parse_magnet_uri(address)
        return lt.load_torrent_file(address)
    except RuntimeError as error:
        raise unreachable(address, error) from error


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    lt = library()
    settings = {
        "listen_interfaces": "0.0.0.0:0",
        "allow_multiple_connections_per_ip": True,
        "user_agent": CREATOR,
        "alert_mask": lt.alert_category.storage,
        # A web seed is named in a torrent that somebody chose: it may be a machine in this network.
        "ssrf_mitigation": False,
        "no_connect_privileged_ports": False,
    }
    session = lt.session(settings)
    try:
        yield session
    finally:
        session.pause()


def _until_whole(handle: Any, address: str, moved: Moved) -> None:
    last, deadline = -1, time.monotonic() + GIVE_UP_S
    while not (status := handle.status()).is_seeding:
        if status.errc.value():
            raise unreachable(address, status.errc.message())
        if status.total_done != last:
            last, deadline = status.total_done, time.monotonic() + GIVE_UP_S
            moved(status.total_wanted_done, status.total_wanted)
        if time.monotonic() > deadline:
            raise unreachable(address, f"nothing came for {GIVE_UP_S:g} s, {last} bytes are here")
        time.sleep(LOOK_S)


def _until_written(session: Any, handle: Any, address: str) -> None:
    """A torrent is whole once its pieces were verified, in memory: their files may not be there yet."""
    flushed = library().cache_flushed_alert
    handle.flush_cache()
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        session.wait_for_alert(int(LOOK_S * 1000))
        if any(isinstance(alert, flushed) for alert in session.pop_alerts()):
            return
    raise unreachable(address, f"it was not written within {GIVE_UP_S:g} s")
