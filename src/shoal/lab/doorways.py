"""Hosts as network namespaces, each with one interface whose packets an emulator takes and gives.

In flow names and an order of preference; out flow namespaces and the emulator's descriptors. Invariant: called in a
namespace of its own by a process with one thread; nothing here has a name outside it, so nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.lab import kernel

_SYSCTL = Path("/proc/sys/net/ipv4")
PREFERRED = ("bbr", "cubic", "reno")
ETHERNET_BYTES = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What was built: namespaces and doors by place, and how the doors are to be read."""

    networks: tuple[int, ...]
    doors: tuple[int, ...]
    doorway: str
    """`tun`, `packet`, or `hub` where the kernel itself carries the packets and there are no doors."""
    congestion: str

    @property
    def header_bytes(self) -> int:
        return 0 if self.doorway == "tun" else ETHERNET_BYTES


def build(count: int, *, mtu: int, vnet: bool, congestion: str | None, hub: bool) -> Hosts:
    """Make the hosts. Raises SH-LAB-03 or SH-LAB-05."""
    home = kernel.own_network()
    try:
        kernel.set_up("lo")
        doorway = "hub" if hub else _doorway()
        networks, doors, chosen = [], [], ""
        for place in range(count):
            kernel.unshare(kernel.NEWNET)
            networks.append(kernel.own_network())
            chosen = _tune(congestion)
            if doorway == "tun":
                doors.append(kernel.open_tun(vnet=vnet))
            else:
                _join_with_cable(home, networks[place], place, mtu, vnet=vnet)
                if not hub:
                    kernel.setns(home, kernel.NEWNET)
                    doors.append(kernel.open_packets(f"h{place}", vnet=vnet))
                    kernel.setns(networks[place], kernel.NEWNET)
            kernel.set_up("lo")
            kernel.set_up(kernel.NAME, mtu=mtu)
            kernel.set_addresses(kernel.NAME, place)
    except OSError as error:
        raise ShoalError(
            "SH-LAB-03", f"a host's network cannot be made: {error}", "see docs/lab.md, What it needs"
        ) from None
    finally:
        kernel.setns(home, kernel.NEWNET)
        os.close(home)
    return Hosts(networks=tuple(networks), doors=tuple(doors), doorway=doorway, congestion=chosen)


def _doorway() -> str:
    """TUN where the device may be opened, else packet sockets, which need nothing but the namespace."""
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
        return "tun"
    if shutil.which("ip") is None:
        raise ShoalError(
            "SH-LAB-03",
            "/dev/net/tun cannot be opened, and there is no `ip` program to do without it",
            "install iproute2, or let this user open /dev/net/tun (chmod 666, as most distributions do)",
        )
    return "packet"


def _join_with_cable(home: int, network: int, place: int, mtu: int, *, vnet: bool) -> None:
    """A veth cable from the host (`wan0`) to the hub (`h0`, `h1`, ...)."""
    kernel.setns(home, kernel.NEWNET)
    here = f"h{place}"
    run_tool("ip", "link", "add", here, "type", "veth", "peer", "name", f"p{place}")
    run_tool("ip", "link", "set", f"p{place}", "netns", f"/proc/self/fd/{network}", inherit=(network,))
    if not vnet:
        kernel.offloads_off(here)
    kernel.make_broadcast_like(here)
    kernel.set_up(here, mtu=mtu)
    kernel.setns(network, kernel.NEWNET)
    run_tool("ip", "link", "set", f"p{place}", "name", kernel.NAME)
    if not vnet:
        kernel.offloads_off(kernel.NAME)
    kernel.make_broadcast_like(kernel.NAME)


def run_tool(*words: str, inherit: tuple[int, ...] = ()) -> str:
    """Run a system program; what it printed. Raises SH-LAB-03 with what it complained of."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, pass_fds=inherit, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShoalError("SH-LAB-03", f"{words[0]} cannot be run: {error}", "install iproute2") from None
    if done.returncode != 0:
        raise ShoalError(
            "SH-LAB-03",
            f"`{' '.join(words)}` failed: {done.stderr.strip()[:300]}",
            "see docs/lab.md, What it needs",
        )
    return done.stdout


def _tune(congestion: str | None) -> str:
    """Pin the host's congestion control, and let TCP remember nothing from one connection to the next."""
    with contextlib.suppress(OSError):
        (_SYSCTL / "tcp_no_metrics_save").write_text("1")
    wanted = PREFERRED if congestion is None else (congestion,)
    for name in wanted:
        with contextlib.suppress(OSError):
            (_SYSCTL / "tcp_congestion_control").write_text(name)
            return name
    found = (_SYSCTL / "tcp_congestion_control").read_text("ascii").strip()
    if found in wanted:
        return found
    raise ShoalError(
        "SH-LAB-05",
        f"the kernel does not give hosts the congestion control {' or '.join(wanted)} (they would have {found})",
        "choose another, or allow it: sysctl net.ipv4.tcp_allowed_congestion_control as root",
    )
