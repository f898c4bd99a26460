import pytest

from .gatherings import combined, gathered

UPDATES = [[4.0, None, None, 2.0], [8.0, 6.0, None, None], [None, None, None, 4.0]]


def test_a_value_is_averaged_over_those_who_sent_it() -> None:
    by_sender = combined("sender-mean", gathered(UPDATES, [1, 1, 2])).tolist()
    assert by_sender == pytest.approx([6.0, 6.0, 0.0, 10 / 3]) and by_sender[2] == 0.0
    assert combined("mean", gathered(UPDATES, [1, 1, 2])).tolist() == [3.0, 1.5, 0.0, 2.5]


def test_a_zero_that_was_sent_counts() -> None:
    assert combined("sender-mean", gathered([[0.0], [4.0]])).tolist() == [2.0]


def test_part_of_the_fleet_counts_as_that_part() -> None:
    assert combined("sender-mean", gathered([[4.0, None], [8.0, 2.0]], whole=4)).tolist() == [3.0, 1.0]


def test_a_weight_too_small_to_count_is_nobody() -> None:
    gathering = gathered([[4.0, 5.0], [None, 1.0]], [1, 10**60])
    assert combined("sender-mean", gathering).tolist() == [0.0, 1.0]
