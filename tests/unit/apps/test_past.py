"""A run's past as records: packed when it is old, bounded, and the same as ever."""

from shoal.apps.api.past import BLOCK, OPEN, Past
from shoal.apps.api.records import EventRecord
from shoal.worlds.simulated.weighing import weigh

MOST = 20 * BLOCK


def _event(number: int) -> EventRecord:
    return EventRecord(
        id=number,
        time_ms=1_700_000_000_000 + number,
        kind="round_sealed",
        level="info",
        text=f"Round {number} was sealed with «{number % 7}» updates",
        reason="all came",
        round=number,
        node=None,
        position=3 * number,
    )


def _past(count: int) -> Past[EventRecord]:
    past = Past(EventRecord, MOST)
    for number in range(count):
        past.append(_event(number))
    return past


def test_it_reads_as_a_list_would() -> None:
    count = OPEN + 5 * BLOCK + 3
    past, plain = _past(count), [_event(number) for number in range(count)]
    assert len(past) == count and list(past) == plain and list(past.newest_first()) == plain[::-1]
    for start, stop in ((0, 5), (BLOCK - 1, 2 * BLOCK + 1), (count - 3, count + 9), (7, 7), (0, count)):
        assert past.between(start, stop) == plain[start:stop]
    assert past.latest(BLOCK * 3) == plain[-BLOCK * 3 :] and past.latest(2 * count) == plain


def test_a_record_is_replaced_whether_packed_or_not() -> None:
    past = _past(OPEN + 3 * BLOCK)
    for place in (1, BLOCK, len(past) - 1):
        past.replace(place, _event(999))
        assert past.between(place, place + 1) == [_event(999)]
    assert sum(record == _event(999) for record in past) == 3


def test_the_oldest_go_and_twice_as_many_take_no_more() -> None:
    once, twice = _past(2 * MOST), _past(4 * MOST)
    assert len(twice) <= MOST and twice.latest(1) == [_event(4 * MOST - 1)]
    assert next(iter(twice)).id == 4 * MOST - len(twice)
    assert weigh(twice._packed, set()) < 1.2 * weigh(once._packed, set())
    assert len(twice._open) < OPEN + BLOCK


def test_what_is_packed_takes_a_tenth() -> None:
    past = _past(MOST)
    packed = weigh(past._packed, set()) / (BLOCK * len(past._packed))
    assert packed < weigh(past._open, set()) / len(past._open) / 10


def test_the_latest_are_changed_whether_packed_or_not() -> None:
    count = OPEN + 3 * BLOCK + 7
    for changed in (3, BLOCK + OPEN, count - 1, 2 * count):
        past = _past(count)
        past.change_latest(changed, lambda record: record.model_copy(update={"reason": "undone"}))
        assert [record.reason == "undone" for record in past] == [
            count - record.id <= changed for record in past
        ]
