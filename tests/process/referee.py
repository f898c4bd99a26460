"""What must hold of a run whatever was killed: checked from the stores on disk, once the processes are gone.

In flow a fleet's folders; out flow assertions. Invariant: nothing is taken from the processes' own words but what
they signed or made durable.
"""

from __future__ import annotations

import json
from collections import Counter

import msgspec

from shoal.base.ids import NodeId
from shoal.coordinator.claims import PREFIX
from shoal.runlog.chain import Link, read_link
from shoal.runlog.entries import Claim, Seal, Stopped
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView, verify_log
from shoal.wire.messages import Offer
from shoal.wire.signed import Signed, parse
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import Fleet, accepted_claims
from .processes import run_shoal


def stored_log(fleet: Fleet, start: int = 0) -> list[Link]:
    """The log from `start` as it lies in the coordinator's store."""
    store = SqlLogStore(fleet.store_url, create=False)
    try:
        return [read_link(entry) for entry in store.read(fleet.run, start)]
    finally:
        store.close()


def kept_claims(fleet: Fleet) -> list[Signed]:
    """The claims that the coordinator has made durable and not yet dropped; every acknowledged one is, or was,
    among them."""
    store = SqlLogStore(fleet.store_url, create=False)
    try:
        kept = store.kept(fleet.run, PREFIX)
    finally:
        store.close()
    return [msgspec.msgpack.decode(value, type=Offer).claim for value in kept.values()]


def outbox(fleet: Fleet, name: str) -> Signed | None:
    """The claim that a node has made durable, if it has one."""
    path = fleet.node_folder(name) / "outbox"
    return msgspec.msgpack.decode(path.read_bytes(), type=Signed) if path.exists() else None


def claim_in(signed: Signed) -> Claim:
    claim = parse(signed.payload, Claim)
    assert claim is not None
    return claim


def settled(links: list[Link]) -> Counter[tuple[NodeId, int]]:
    """How often each (node, sequence) was accepted or rejected."""
    found: Counter[tuple[NodeId, int]] = Counter()
    for link in links:
        found.update((claim.node, claim.sequence) for claim, _ in accepted_claims(link))
        if isinstance(link.entry.body, Seal | Stopped):
            found.update((item.node, item.sequence) for item in link.entry.body.rejected)
    return found


def check_settled(links: list[Link], claims: list[Signed]) -> None:
    """These very claims were settled, none of them twice and none replaced by others under its number."""
    counts = settled(links)
    accepted = {
        (claim.node, claim.sequence): signed for link in links for claim, signed in accepted_claims(link)
    }
    for signed in claims:
        claim = claim_in(signed)
        key = (claim.node, claim.sequence)
        assert counts[key] == 1, f"{key} was settled {counts[key]} times"
        assert accepted.get(key, signed) == signed, f"{key} was sealed with other bytes"


def check_log(links: list[Link]) -> RunView:
    """Every entry holds, every round is sealed once, all attested states agree, no claim counts twice."""
    view, finding = verify_log([link.encoded for link in links])
    assert finding is None, finding
    rounds = [link.entry.body.round for link in links if isinstance(link.entry.body, Seal)]
    assert rounds == list(range(len(rounds)))
    for position, words in view.attested.items():
        states = {word.state for word in words.values()}
        assert len(states) == 1, f"at {position} nodes have {states}"
    twice = [key for key, count in settled(links).items() if count > 1]
    assert not twice, f"settled twice: {twice}"
    return view


def check_copies(fleet: Fleet, links: list[Link]) -> None:
    """Every node's copy of the log is the beginning of the coordinator's: nothing told was lost or changed."""
    for name in fleet.nodes:
        log = FileLogStore(FileDisk(fleet.node_folder(name)), lambda point: None)
        copy = [read_link(entry).hash for entry in log.read(fleet.run)]
        assert copy == [link.hash for link in links[: len(copy)]], f"{name}'s copy differs"


def check_by_command(fleet: Fleet) -> None:
    """`shoal log verify` is content, and `shoal log replay` comes to the attested state."""
    verified = run_shoal(["log", "verify", fleet.run, *fleet.place])
    assert verified.status == 0 and verified.out.startswith("ok: "), verified
    replayed = run_shoal(["log", "replay", fleet.run, "--json", *fleet.place])
    assert replayed.status == 0, replayed.err
    answer = json.loads(replayed.out)
    view = check_log(stored_log(fleet))
    words = view.attested.get(answer["at"], {})
    assert answer["attested"] == len(words) > 0
    assert {word.state for word in words.values()} == {answer["state"]}


def end_run(fleet: Fleet) -> list[Link]:
    """Stop the run, wait until its last state is saved and everyone has gone, check all of it; its log."""
    fleet.post("stop", {"reason": "the test has seen enough"})
    fleet.until(lambda: fleet.status()["state"] == "over", 30.0, "the final state to be saved")
    for child in fleet.nodes.values():
        if child.alive:
            assert child.ended() == 0, fleet.logs()
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    links = stored_log(fleet)
    check_log(links)
    assert kept_claims(fleet) == [], "whatever was acknowledged is settled"
    check_copies(fleet, links)
    check_by_command(fleet)
    return links
