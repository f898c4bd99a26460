"""Every tampering with a real log is found, at the right place."""

import pytest

from shoal.base.ids import RunId
from shoal.runlog.chain import Link
from shoal.runlog.view import Finding, verify_log
from shoal.wire.signed import digest

from .small_log import COORDINATOR, OTHER_RUN, RUN, STRANGER, Clerk, whole_story

STORY = whole_story()
POSITIONS = range(len(STORY.entries))


def _finding(entries: list[bytes], run: RunId | None = RUN) -> Finding:
    view, finding = verify_log(entries, run)
    assert finding is not None and finding.what
    assert view.length == finding.position, "the view must stand after the last good entry"
    return finding


def _resigned(link: Link, by: Clerk) -> bytes:
    """The same entry, word for word, with another key's signature."""
    signer = Clerk(identity=by.identity)
    return signer.make(link.entry.body, **{name: getattr(link.entry, name) for name in _PLACE}).encoded


_PLACE = ("run", "position", "previous", "term", "time_ms")


def test_the_whole_story_holds() -> None:
    view, finding = verify_log(STORY.entries, RUN)
    assert finding is None
    assert view.length == len(STORY.entries) and view.stopped == "3 rounds done"
    assert [step.round for step in view.path] == [0, 2]
    kinds = {type(link.entry.body).__name__ for link in STORY.links}
    assert len(kinds) == 9, "every kind of entry but digests, which nobody writes yet"


@pytest.mark.parametrize("position", POSITIONS)
def test_a_flipped_byte_is_found(position: int) -> None:
    entry = STORY.entries[position]
    places = sorted({*range(0, len(entry), 11), *range(8), len(entry) - 1, len(entry) - 64})
    for place in places:
        bent = bytearray(entry)
        bent[place] ^= 1 << place % 8
        entries = [*STORY.entries[:position], bytes(bent), *STORY.entries[position + 1 :]]
        # A bent genesis may also surface as "another run", "another key": always at its own place.
        assert _finding(entries).position == position, f"byte {place}"


@pytest.mark.parametrize("position", POSITIONS[:-1])
def test_a_removed_entry_is_found(position: int) -> None:
    entries = [*STORY.entries[:position], *STORY.entries[position + 1 :]]
    assert _finding(entries).position == position


@pytest.mark.parametrize("position", POSITIONS[:-1])
def test_swapped_neighbours_are_found(position: int) -> None:
    entries = list(STORY.entries)
    entries[position], entries[position + 1] = entries[position + 1], entries[position]
    assert _finding(entries).position == position


@pytest.mark.parametrize("position", POSITIONS)
def test_a_duplicate_is_found(position: int) -> None:
    entries = [*STORY.entries[: position + 1], *STORY.entries[position:]]
    assert _finding(entries).position == position + 1


@pytest.mark.parametrize("position", POSITIONS)
def test_an_entry_signed_by_another_key_is_found(position: int) -> None:
    forged = _resigned(STORY.links[position], Clerk(identity=STRANGER))
    entries = [*STORY.entries[:position], forged, *STORY.entries[position + 1 :]]
    finding = _finding(entries)
    assert finding.position == position and "not signed" in finding.what


def test_the_same_signer_gives_the_same_entry() -> None:
    """The helper above forges nothing but the signature."""
    assert _resigned(STORY.links[3], Clerk(identity=COORDINATOR)) == STORY.entries[3]


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("run", [RUN, None])
def test_an_entry_of_another_run_is_found(position: int, run: RunId | None) -> None:
    other = whole_story(run=OTHER_RUN)
    entries = [*STORY.entries[:position], other.entries[position], *STORY.entries[position + 1 :]]
    # Without being told which run this should be, a foreign genesis shows only at the entry after it.
    expected = 1 if position == 0 and run is None else position
    assert _finding(entries, run).position == expected


def test_a_genesis_with_another_key_shows_at_the_next_entry() -> None:
    entries = [whole_story(identity=STRANGER).entries[0], *STORY.entries[1:]]
    assert _finding(entries).position == 1


def test_a_foreign_log_is_not_this_run() -> None:
    assert _finding(whole_story(run=OTHER_RUN).entries, RUN).position == 0


def test_a_fork_is_found_where_it_leaves() -> None:
    """A coordinator that goes on from an earlier head, well signed, does not follow."""
    for position in POSITIONS[2:]:
        fork = Clerk(term=9)
        for link in STORY.links[: position - 1]:
            fork.view.apply(link)
        other = fork.make(STORY.links[position].entry.body, position=position)
        entries = [*STORY.entries[:position], other.encoded]
        assert _finding(entries).position == position


def test_nothing_is_an_empty_log() -> None:
    view, finding = verify_log([], RUN)
    assert finding is None and view.genesis is None and view.length == 0


def test_hashes_name_the_payload() -> None:
    assert len({link.hash for link in STORY.links}) == len(STORY.links)
    assert all(len(link.hash) == len(digest(b"")) for link in STORY.links)
