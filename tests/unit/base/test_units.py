import pytest

from shoal.base.units import duration_s, rate_bytes_s, show_bytes, show_duration, size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500 MB", 5 * 10**8), ("2GiB", 2**31), ("1.5g", 15 * 10**8), ("7B", 7), (" 3 kb ", 3000)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10 Mbit/s", 1.25e6),
        ("10mbit", 1.25e6),
        ("2 MB/s", 2e6),
        ("8bit/s", 1.0),
        ("1 Gbps", 125e6),
        ("8 kb/s", 1000),
        ("2 MBps", 2e6),
        ("5B/s", 5),
    ],
)
def test_rates(text: str, rate: float) -> None:
    assert rate_bytes_s(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5min", 300), ("5 m", 300), ("2h", 7200), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1 MB", "1 parsec", "1e3 MB", "1 MB 2", "1..5 MB", "inf", "nan"])
@pytest.mark.parametrize("read", [size_bytes, rate_bytes_s, duration_s])
def test_what_is_no_quantity_is_refused_in_words(text: str, read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="is not"):
        read(text)


@pytest.mark.parametrize("text", ["5 zbit/s", "5 bitbit", "5 xbit"])
def test_an_unknown_rate_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not a unit of rate"):
        rate_bytes_s(text)


def test_showing() -> None:
    assert [show_bytes(n) for n in (0, 999, 1234567, 5e9, 2e13)] == [
        "0 B",
        "999 B",
        "1.2 MB",
        "5.0 GB",
        "20.0 TB",
    ]
    assert [show_duration(s) for s in (0, 75, 3700)] == ["0:00", "1:15", "1:01:40"]
