"""A machine that was lent: it offers itself, and does what it is told to, until its owner wants it back.

In flow the coordinator's answers; out flow a `shoal join` for the run or region that it names and, where it says so, a
`shoal hub`. Invariant: at most one of each is on at a time, with this machine's one key, and each leaves before the
next begins; offers go on meanwhile, so that whoever waits for this machine knows that it is here.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.apps.home import Home
from shoal.apps.hub_address import HUB_PORTS, HubAddress
from shoal.apps.lent_child import LentChild
from shoal.apps.printable import printable
from shoal.apps.round_trips import Door, Prober
from shoal.base.errors import ShoalError

if TYPE_CHECKING:
    from shoal.apps.api.client import ApiClient
    from shoal.apps.api.models import PoolPlace
    from shoal.wire.identity import Identity

LOOK_S = 0.2
ASK_AGAIN_S = 5.0
"""Where the coordinator does not answer; sooner where it said so: by its lease, whoever is silent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this machine says of itself."""

    speed: float
    memory_bytes: int
    up_bytes_s: float
    least_pay_micro: int
    prefers: tuple[str, ...]
    label: str = ""
    hub: HubAddress | None = None


class Lent:
    """One machine. `words` are for every `shoal join`."""

    def __init__(
        self,
        api: ApiClient,
        identity: Identity,
        offer: Offer,
        home: Home,
        words: list[str],
        asked: threading.Event,
    ) -> None:
        self._api, self._identity, self._offer, self._home = api, identity, offer, home
        self._words, self._asked = words, asked
        self._join, self._hub = LentChild(), LentChild(self._hub_said)
        self._leads: tuple[str, int] | None = None
        """The run and the number of the region that it is the hub of."""
        self._region_ticket = ""
        self._news = threading.Event()
        self._prober = Prober()
        self._door = Door(offer.hub.bind, offer.hub.port) if offer.hub else None
        self._said = ""

    def run(self) -> None:
        """Until asked to stop. Raises what the first offer raises: later ones are made again and again."""
        if self._door:
            self._door.open()
        place = self._ask()
        try:
            while not self._asked.is_set():
                self._say(_words_of(place))
                self._work(place)
                try:
                    told = self._ask()
                except ShoalError as error:
                    self._say(f"{error.cause}; asking again")
                    place = place.model_copy(update={"ask_again_s": min(place.ask_again_s, ASK_AGAIN_S)})
                else:
                    # A coordinator that has just begun knows nothing yet: whoever works goes on.
                    later = {"ask_again_s": told.ask_again_s}
                    place = place.model_copy(update=later) if told.undecided else told
        finally:
            self._join.end()
            self._hub.end()
            with contextlib.suppress(ShoalError):  # Who is gone does not have to be told.
                self._ask(leaves=True)

    def _ask(self, *, leaves: bool = False) -> PoolPlace:
        from shoal.apps.api.pooling import signed_offer

        offer, ticket = self._offer, self._region_ticket
        values: dict[str, Any] = {
            "coordinator": self._api.health().coordinator,
            "at_ms": time.time_ns() // 1_000_000,
            "speed": offer.speed,
            "memory_bytes": offer.memory_bytes,
            "up_bytes_s": offer.up_bytes_s,
            "least_pay_micro": offer.least_pay_micro,
            "prefers": list(offer.prefers),
            "leaves": leaves,
            "hub_address": str(offer.hub or ""),
            "label": offer.label,
            "trips": self._prober.found(),
            "serves": self._leads[1] if self._leads and ticket else 0,
            "region_ticket": ticket,
        }
        place = self._api.lend(signed_offer(self._identity, values))
        self._prober.look_at(place.probe)
        return place

    def _work(self, place: PoolPlace) -> None:
        """Do this until it is time to ask again: after a while, or when there is something to tell."""
        deadline = time.monotonic() + place.ask_again_s
        while not self._tend(place) and time.monotonic() < deadline and not self._asked.wait(LOOK_S):
            if self._news.is_set():
                break
        self._news.clear()

    def _tend(self, place: PoolPlace) -> bool:
        """Have on what was told, and nothing else; True if something has ended by itself."""
        ended = self._lead(place)
        what = (place.run, place.region) if place.run else None
        arguments = ["join", place.ticket, *self._words] if place.ticket else None
        return self._join.tend(what, arguments) or ended

    def _lead(self, place: PoolPlace) -> bool:
        number = place.region if place.hub_ticket and self._offer.hub else None
        leads = (str(place.run), number) if number is not None else None
        if leads != self._leads:
            self._leads, self._region_ticket = leads, ""
        if self._door is None or number is None:
            ended = self._hub.tend(None, None)
            if self._door and not self._hub.is_on:
                with contextlib.suppress(
                    ShoalError
                ):  # Its port may be taken for a moment; it is tried again.
                    self._door.open()
            return ended
        self._door.close()
        if not self._hub.is_on:
            self._clear_regions(str(place.run), number)
        return self._hub.tend((place.run, number), self._hub_words(place, number))

    def _hub_words(self, place: PoolPlace, number: int) -> list[str]:
        hub = self._offer.hub
        assert hub is not None
        ports = [str(hub.port + place) for place in range(HUB_PORTS)]
        folder = self._home.regions / _folder(str(place.run), number)
        words = ["hub", str(place.hub_ticket), "--json", "--name", _name(number)]
        words += ["--home", str(self._home.root), "--region-home", str(folder)]
        words += ["--host", hub.bind, "--advertise", hub.host]
        words += ["--control-port", ports[0], "--blob-port", ports[1], "--port", ports[2]]
        return [*words, *(["--allow-code"] if "--allow-code" in self._words else [])]

    def _clear_regions(self, run: str, number: int) -> None:
        """What is left of regions that were this machine's before: others have taken them over."""
        kept = _folder(run, number)
        for folder in self._home.regions.iterdir() if self._home.regions.is_dir() else ():
            if folder.name != kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _hub_said(self, found: dict[str, Any]) -> None:
        """From another thread: the region is open, and this is its ticket."""
        if "ticket" in found and self._leads is not None and found.get("region") == _name(self._leads[1]):
            self._region_ticket = str(found["ticket"])
            self._news.set()

    def _say(self, text: str) -> None:
        if text != self._said:
            print(printable(text, 400), file=sys.stderr, flush=True)
            self._said = text


def _words_of(place: PoolPlace) -> str:
    if place.run is None:
        return f"works for no run: {place.reason}"
    return f"works for run {place.run[:12]}: {place.reason}"


def _name(number: int) -> str:
    return f"region-{number}"


def _folder(run: str, number: int) -> str:
    return f"{run}-{number}"
