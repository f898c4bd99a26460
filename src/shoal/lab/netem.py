"""The kernel's own emulator behind the same arguments and commands as `emulator.c`, by the `tc` program.

In flow commands; out flow queueing disciplines. The keeper's namespace is a router with one cable a host: a host's
uplink is netem's rate on its end; on the router's end htb has the downlink's rate, over one netem for each sender
with the pair's latency, jitter and loss. Invariant: standard library only, since it is started as a script.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_NEWNET = 0x40000000
FRAME_BYTES = 1514
UNLIMITED_BYTES_S = 1.25e9
FIRST_CLASS = 0x10
CORRELATION = 90
"""Per cent, from packet to packet: jitter wanders, and rarely reorders."""


def can_netem() -> bool:
    """Whether this kernel and its tools can do all of it; tried on the loopback of this namespace."""
    if shutil.which("tc") is None or shutil.which("ip") is None:
        return False
    trial = [
        "qdisc add dev lo root handle 1: htb",
        "class add dev lo parent 1: classid 1:1 htb rate 1mbit",
        "qdisc add dev lo parent 1:1 handle 10: netem delay 1ms rate 1mbit",
        "filter add dev lo parent 1: protocol ip u32 match ip src 10.77.0.1/32 flowid 1:1",
    ]
    try:
        return all(_tc(line) for line in trial)
    finally:
        _tc("qdisc del dev lo root")


def _tc(line: str) -> bool:
    return subprocess.run(["tc", *line.split()], capture_output=True, timeout=30).returncode == 0


def _batch(lines: Sequence[str]) -> None:
    done = subprocess.run(
        ["tc", "-force", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"tc: {done.stderr.strip()[:500]}")


def _bits(bytes_s: float) -> str:
    return f"{int(8 * (bytes_s or UNLIMITED_BYTES_S))}bit"


def _packets(size: float) -> int:
    return max(10, int(size / FRAME_BYTES))


def downlink_lines(place: int, count: int) -> list[str]:
    """What the router's end of a host's cable has before anything is set."""
    dev = f"h{place}"
    lines = [
        f"qdisc add dev {dev} root handle 1: htb default 1",
        f"class add dev {dev} parent 1: classid 1:1 htb rate {_bits(0)}",
    ]
    for sender in range(count):
        minor = f"{FIRST_CLASS + sender:x}"
        high, low = divmod(sender + 1, 256)
        lines += [
            f"class add dev {dev} parent 1:1 classid 1:{minor} htb rate 8kbit ceil {_bits(0)}",
            f"qdisc add dev {dev} parent 1:{minor} handle {minor}: netem loss 100%",
            f"filter add dev {dev} parent 1: protocol ip prio 1 u32 match ip src 10.77.{high}.{low}/32 "
            f"flowid 1:{minor}",
            f"filter add dev {dev} parent 1: protocol ipv6 prio 2 u32 match ip6 src fd77::{sender + 1:x}/128 "
            f"flowid 1:{minor}",
        ]
    return lines


def down_lines(place: int, count: int, down_bytes_s: float) -> list[str]:
    """A downlink's rate, shared by the senders as they come."""
    dev, rate = f"h{place}", _bits(down_bytes_s)
    lines = [f"class change dev {dev} parent 1: classid 1:1 htb rate {rate}"]
    return lines + [
        f"class change dev {dev} parent 1:1 classid 1:{FIRST_CLASS + sender:x} htb rate 8kbit ceil {rate}"
        for sender in range(count)
    ]


def up_line(up_bytes_s: float, queue_bytes: float) -> str:
    return f"qdisc replace dev wan0 root netem rate {_bits(up_bytes_s)} limit {_packets(queue_bytes)}"


def pair_line(sender: int, receiver: int, is_open: bool, values: Sequence[float], queue_bytes: float) -> str:
    """One sender's netem at one receiver."""
    latency, jitter, _, loss, rate, _ = values
    minor = f"{FIRST_CLASS + sender:x}"
    waiting = queue_bytes + latency * UNLIMITED_BYTES_S / 10
    words = [f"qdisc change dev h{receiver} parent 1:{minor} handle {minor}: netem"]
    words.append(f"limit {_packets(waiting)} delay {latency * 1e6:.0f}us")
    if jitter:
        words.append(f"{jitter * 1e6:.0f}us {CORRELATION}%")
    words.append(f"loss {100 * loss if is_open else 100:.6f}%")
    if rate:
        words.append(f"rate {_bits(rate)}")
    return " ".join(words)


class Netem:
    def __init__(self, control: socket.socket, networks: list[int]) -> None:
        self._control, self._networks = control, networks
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._queues = [0.0] * len(networks)
        count = len(networks)
        _route(count)
        for place in range(count):
            _batch(downlink_lines(place, count))

    def run(self) -> None:
        self._control.send(b"ready")
        while text := self._control.recv(512):
            self._control.send(self._obey(text.decode("ascii").split()).encode("ascii"))

    def _obey(self, words: list[str]) -> str:
        count = len(self._networks)
        match words:
            case ["host", place, *values] if len(values) == 4:
                up, down, queue_up, queue_down = map(float, values)
                self._queues[int(place)] = queue_down
                _batch(down_lines(int(place), count, down))
                self._in_host(int(place), up_line(up, queue_up))
            case ["pair", a, b, is_open, *values] if len(values) == 6:
                numbers = [float(value) for value in values]
                if a != b:
                    _batch([pair_line(int(a), int(b), is_open == "1", numbers, self._queues[int(b)])])
            case ["mark"]:
                pass
            case ["stats"]:
                return json.dumps({"in_flight": 0, "late": [], "hosts": _counts(count)})
            case _:
                return "unknown command"
        return "ok"

    def _in_host(self, place: int, line: str) -> None:
        self._libc.setns(self._networks[place], _NEWNET)
        try:
            _batch([line])
        finally:
            self._libc.setns(self._home, _NEWNET)


def _route(count: int) -> None:
    for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        path = Path("/proc/sys/net") / name
        if path.exists():
            path.write_text("1")
    for place in range(count):
        high, low = divmod(place + 1, 256)
        for address in (f"10.77.{high}.{low}/32", f"fd77::{place + 1:x}/128"):
            # Without IPv6 in the kernel, only the second fails, and nobody needs it.
            subprocess.run(
                ["ip", "route", "add", address, "dev", f"h{place}"], capture_output=True, timeout=30
            )


def _counts(count: int) -> list[list[int]]:
    """Per host as in `emulator.c`; everything that the disciplines dropped counts as lost."""
    rows = {}
    for row in Path("/proc/self/net/dev").read_text("ascii").splitlines():
        device, colon, cells = row.partition(":")
        if colon:
            rows[device.strip()] = [int(cell) for cell in cells.split()]
    found = []
    for place in range(count):
        cells_of = rows[f"h{place}"]
        shown = subprocess.run(
            ["tc", "-s", "-j", "qdisc", "show", "dev", f"h{place}"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        lost = sum(
            item.get("drops", 0) for item in json.loads(shown.stdout or "[]") if item["kind"] == "netem"
        )
        found.append([cells_of[1], cells_of[0], cells_of[9], cells_of[8], lost, 0, 0, 0])
    return found


def main(arguments: list[str]) -> None:
    control, _header, _vnet, _seed, *networks = map(int, arguments)
    Netem(socket.socket(fileno=control), networks).run()


if __name__ == "__main__":
    main(sys.argv[1:])
