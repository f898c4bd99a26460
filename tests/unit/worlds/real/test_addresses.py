"""Addresses come from strangers: what no host can have is refused as such, and breaks nobody who dials it."""

from __future__ import annotations

import pytest

from shoal.base.errors import ChannelClosed, ShoalError
from shoal.worlds.real.addresses import join_address, reachable_host, split_address

NO_HOSTS = ["a..b", ".x", "a" * 64, "a\0b", "a b", "a/b", "a@b", "a\nb", ""]


@pytest.mark.parametrize("host", NO_HOSTS)
def test_a_name_that_no_host_can_have_is_not_dialled(host: str) -> None:
    with pytest.raises(ChannelClosed):
        split_address(f"{host}:8471")


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "1.5", "\u0663", "9" * 5000])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ChannelClosed):
        split_address(f"localhost:{port}")


@pytest.mark.parametrize(
    "host", ["localhost", "b\u00fccher.example", "example.com.", "::1", "fe80::1%eth0", "10.0.0.1"]
)
def test_a_host_is_read_as_it_was_written(host: str) -> None:
    assert split_address(join_address(host, 8471)) == (host, 8471)


@pytest.mark.parametrize("advertise", [*NO_HOSTS[:-1], "example.com:8471"])
def test_what_nobody_could_reach_is_not_advertised(advertise: str) -> None:
    with pytest.raises(ShoalError) as caught:
        reachable_host("0.0.0.0", advertise)
    assert caught.value.code == "SH-SERVE-02"


def test_an_advertised_address_may_have_brackets() -> None:
    assert reachable_host("::", "[2001:db8::1]") == "2001:db8::1"
