"""Which codec a round has: the finest that does not make it longer, and for thin uplinks a smaller one."""

from __future__ import annotations

import math

from shoal.apps.simulated_fleet import toy_recipe
from shoal.planner.aware import decide
from shoal.planner.codecs import Choice, choose
from shoal.planner.estimates import Traffic
from shoal.planner.loop import choices_of

from .question import fact, node, question

INT8, INT4, TWO = Choice(name="int8"), Choice(name="int4", size=0.5), Choice(name="two-bit", size=0.25)
SPARSE = Choice(name="chunked-top-k", size=0.05, density=1 / 32)
LADDER = (INT8, INT4, TWO, SPARSE)


def number(whole_s: float, room_s: float = 2.0, rounds: float = math.inf, last: int = 0) -> int:
    return choose(LADDER, whole_s, room_s, rounds, last).number


def test_the_finest_codec_that_there_is_time_for_is_chosen() -> None:
    assert [number(whole_s) for whole_s in (0.0, 2.0, 2.1, 4.1, 8.1, 1000.0)] == [0, 0, 1, 2, 3, 3]


def test_values_need_their_turns() -> None:
    assert number(1000.0, rounds=128) == 3
    assert number(1000.0, rounds=127) == 2


def test_a_finer_one_comes_back_where_there_is_time_to_spare() -> None:
    assert number(1.1, last=2) == 1, "int8 would take more than half of the time"
    assert number(1.0, last=2) == 0
    assert number(5.0, last=2) == 2, "what fits stays"


def test_the_reason_names_what_was_compared() -> None:
    reason = choose(LADDER, 7.0, 2.0, math.inf, 0).reason
    assert reason == "updates by two-bit: by int4 they would travel for 3.5 s, and there is time for 2 s"
    assert choose(LADDER, 1.0, 2.0, math.inf, 0).reason == "updates by int8"
    assert choose((INT8,), 7.0, 2.0, math.inf, 0).reason == "", "there was nothing to choose"


def test_the_whole_round_takes_a_smaller_codec_where_lines_are_slow_and_is_no_longer_then() -> None:
    def of(mbit_s: float, *, codecs: tuple[Choice, ...] = LADDER) -> tuple[int, float, str]:
        lines = {"up_bytes_s": mbit_s * 125e3, "down_bytes_s": mbit_s * 125e3}
        fleet = [fact(n, **lines) for n in range(8)]
        found = decide(question(*fleet, traffic=Traffic(update_bytes=150_000, received=7), codecs=codecs))
        assert {share.codec for share in found.shares.values()} <= set(range(found.codec, len(codecs)))
        return found.codec, found.period_s, found.reason

    assert of(1000)[0] == 0
    slower = [of(mbit_s)[0] for mbit_s in (1000, 100, 30, 10, 3, 1)]
    assert slower == sorted(slower) and slower[-1] == 3
    assert of(3)[1] < of(3, codecs=(INT8,))[1] / 2
    assert "updates by chunked-top-k: by two-bit they would travel for" in of(1)[2]


def test_a_thin_uplink_among_good_ones_has_a_smaller_codec_of_its_own() -> None:
    fleet = [*[fact(n) for n in range(7)], fact(9, up_bytes_s=12.5e4)]
    found = decide(question(*fleet, codecs=(INT8, INT4, TWO), goal=0.8))
    assert found.codec == 0 and {found.shares[node(n)].codec for n in range(7)} == {0}
    assert found.shares[node(9)].codec == 2
    assert "two-bit for its uplink" in found.shares[node(9)].reason
    thinner = decide(question(*fleet[:7], fact(9, up_bytes_s=2e3), codecs=LADDER)).shares[node(9)]
    assert thinner.codec == 3 and thinner.thin > 1


def test_a_recipes_codecs_are_measured_against_its_own() -> None:
    ladder = "[{kind: int4}, {kind: two-bit}, {kind: chunked-top-k}]"
    settings = ("strategy.codec.error_feedback=true", f"strategy.codec.choices={ladder}")
    found = choices_of(toy_recipe("adaptive", 60, settings))
    assert [one.name for one in found] == ["int8", "int4", "two-bit", "chunked-top-k"]
    assert [round(one.size, 2) for one in found] == [1.0, 0.52, 0.25, 0.03]
    assert [one.density for one in found] == [None, None, None, 1 / 32]
    assert [one.size for one in choices_of(toy_recipe("adaptive", 60, ()))] == [1.0]
