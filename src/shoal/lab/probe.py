"""Probes that run inside hosts and find out what the links are really like.

    probe.py serve PORT                                     answers until it is ended
    probe.py ask ADDRESS PORT COUNT INTERVAL_S              round trips and losses, as JSON
    probe.py flood ADDRESS PORT BYTES_S SECONDS             how fast packets arrive, as JSON

In flow addresses; out flow measurements. Invariant: standard library only, since it is started as a script; nothing
is known here of what the links should be like.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time

ECHO, FLOOD, QUERY = b"e", b"f", b"q"
PACKET = struct.Struct("!cQd")
SMALL_BYTES, LARGE_BYTES = 64, 1472
HEADERS_BYTES = 20 + 8 + 14
TRIES = 40
LONGEST_S = 3.0


def serve(port: int) -> None:
    """Echo small packets; count both kinds, and tell the counts when asked."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    taken.bind(("", port))
    echoes = floods = flood_bytes = 0
    first = last = 0.0
    first_bytes = 0
    print("serving", flush=True)
    buffer = bytearray(2048)
    while True:
        size, sender = taken.recvfrom_into(buffer)
        kind = buffer[:1]
        if kind == FLOOD:
            last = time.monotonic()
            floods += 1
            flood_bytes += size + HEADERS_BYTES
            if floods == 1:
                first, first_bytes = last, size + HEADERS_BYTES
        elif kind == ECHO:
            echoes += 1
            taken.sendto(buffer[:size], sender)
        elif kind == QUERY:
            spent = last - first
            rate = (flood_bytes - first_bytes) / spent if spent > 0 else 0.0
            told = {"echoes": echoes, "floods": floods, "bytes_s": rate, "seconds": spent}
            taken.sendto(QUERY + json.dumps(told).encode(), sender)


def _query(asking: socket.socket) -> dict[str, float]:
    """The server's counts; asked again while the answer gets lost."""
    for _ in range(TRIES):
        asking.send(QUERY)
        ends = time.monotonic() + 1.0
        asking.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < ends:
                data = asking.recv(2048)
                if data[:1] == QUERY:
                    found: dict[str, float] = json.loads(data[1:])
                    return found
    return {}


def _connect(address: str, port: int) -> socket.socket:
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    asking.connect((address, port))
    return asking


def ask(address: str, port: int, count: int, interval_s: float) -> None:
    asking = _connect(address, port)
    trips: list[float] = []
    began = time.monotonic()
    sent, ends = 0, began + count * interval_s + LONGEST_S
    while len(trips) < count and time.monotonic() < ends:
        due = began + sent * interval_s
        if sent < count and time.monotonic() >= due:
            asking.send(PACKET.pack(ECHO, sent, time.monotonic()).ljust(SMALL_BYTES, b"."))
            sent += 1
            continue
        wait = (due if sent < count else ends) - time.monotonic()
        if sent == count and trips:  # What is missing now is lost, not late.
            wait = min(wait, 3 * max(trips) + 0.1)
        asking.settimeout(max(1e-4, wait))
        try:
            data = asking.recv(2048)
        except TimeoutError:
            if sent == count:
                break
            continue
        trips.append(time.monotonic() - PACKET.unpack_from(data)[2])
    _print({"sent": sent, "trips": sorted(trips), "seconds": time.monotonic() - began, **_query(asking)})


def flood(address: str, port: int, bytes_s: float, seconds: float) -> None:
    asking = _connect(address, port)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    began = time.monotonic()
    packet = PACKET.pack(FLOOD, 0, began).ljust(LARGE_BYTES, b".")
    sent = 0
    while (spent := time.monotonic() - began) < seconds:
        due = int(bytes_s * spent / (LARGE_BYTES + HEADERS_BYTES)) + 1
        for _ in range(due - sent):
            with contextlib.suppress(OSError):
                asking.send(packet)
        sent = max(sent, due)
        time.sleep(0.0005)
    _print({"sent": sent, **_query(asking)})


def _print(found: dict[str, object]) -> None:
    print(json.dumps(found), flush=True)


def hurry() -> None:
    """What is measured is the emulator, not how long this program waits for a processor: real time, if allowed."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))


if __name__ == "__main__":
    hurry()
    match sys.argv[1:]:
        case ["serve", port]:
            serve(int(port))
        case ["ask", address, port, count, interval]:
            ask(address, int(port), int(count), float(interval))
        case ["flood", address, port, rate, seconds]:
            flood(address, int(port), float(rate), float(seconds))
        case _:
            raise SystemExit(2)
