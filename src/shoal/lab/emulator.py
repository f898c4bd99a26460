"""The emulator in Python, for machines without a C compiler: the same model, arguments and commands as `emulator.c`.

In flow packets and commands; out flow packets, later or never, and counts. Invariant: standard library only, since
it is started as a script. Good to about 100 Mbit/s in all; the report says when it was not.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import json
import math
import os
import random
import select
import socket
import sys
import time
from dataclasses import dataclass, field

FRAME_BYTES = 14
LATE_BUCKETS = 64
BURST = 32
DELIVERIES = 256
MOST_IN_FLIGHT = 1 << 30
LARGEST = 70_000
PR_SET_TIMERSLACK = 29
GRID_STEPS = 8
KEEP = math.exp(-1 / GRID_STEPS)
REST = math.sqrt(1 - KEEP * KEEP)


@dataclass(slots=True)
class Line:
    s_per_byte: float = 0.0
    queue_bytes: float = 0.0
    free_at: float = 0.0

    def set(self, bytes_s: float, queue_bytes: float) -> None:
        self.s_per_byte = 1 / bytes_s if bytes_s > 0 else 0.0
        self.queue_bytes = queue_bytes

    def book(self, t: float, size: int) -> float:
        """When these bytes are through, or -1 if the queue is full."""
        if not self.s_per_byte:
            return t
        start = max(t, self.free_at)
        if (start - t) / self.s_per_byte > self.queue_bytes:
            return -1.0
        self.free_at = start + size * self.s_per_byte
        return self.free_at


@dataclass(slots=True)
class Host:
    fd: int
    up: Line = field(default_factory=Line)
    down: Line = field(default_factory=Line)
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    lost: int = 0
    queue_drops: int = 0
    closed: int = 0
    failed: int = 0

    def counts(self) -> list[int]:
        sent, received = [self.sent, self.sent_bytes], [self.received, self.received_bytes]
        return [*sent, *received, self.lost, self.queue_drops, self.closed, self.failed]


@dataclass(slots=True)
class Path:
    open: bool = False
    latency: float = 0.0
    jitter: float = 0.0
    grid: float = 0.001
    loss: float = 0.0
    own: Line = field(default_factory=Line)
    last: float = 0.0
    grid_at: float = -1e9
    before: float = 0.0
    after: float = 0.0

    def jitter_at(self, t: float, rng: random.Random) -> float:
        if self.jitter <= 0:
            return 0.0
        if t - self.grid_at > 100 * self.grid:
            self.grid_at, self.before = t, self.jitter * _normal(rng)
            self.after = KEEP * self.before + REST * self.jitter * _normal(rng)
        while t >= self.grid_at + self.grid:
            self.grid_at += self.grid
            self.before = self.after
            self.after = KEEP * self.before + REST * self.jitter * _normal(rng)
        return self.before + (t - self.grid_at) / self.grid * (self.after - self.before)


def _normal(rng: random.Random) -> float:
    return max(-3.0, min(3.0, rng.gauss(0.0, 1.0)))


class Emulator:
    def __init__(self, control: socket.socket, header: int, seed: int, fds: list[int]) -> None:
        self._control, self._header = control, header
        self._rng = random.Random(seed)  # noqa: S311 (packet loss, not secrets)
        self._hosts = [Host(fd) for fd in fds]
        self._paths = [[Path() for _ in fds] for _ in fds]
        self._heap: list[tuple[float, int, bool, int, int, bytes]] = []
        self._order = self._in_flight = 0
        self._late = [0] * LATE_BUCKETS

    def run(self) -> None:
        places = {host.fd: place for place, host in enumerate(self._hosts)}
        watched = [*places, self._control.fileno()]
        self._control.send(b"ready")
        while True:
            for fd in select.select(watched, [], [], self._wait_s())[0]:
                if fd in places:
                    self._read(places[fd])
                else:
                    self._obey_all()
            self._run_due(time.monotonic())

    def _wait_s(self) -> float | None:
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None

    # --- the model ---------------------------------------------------------------------------------------

    def _read(self, place: int) -> None:
        for _ in range(BURST):
            try:
                frame = os.read(self._hosts[place].fd, LARGEST)
            except (BlockingIOError, OSError):
                return
            self._take(place, frame, time.monotonic())

    def _take(self, sender: int, frame: bytes, t: float) -> None:
        receiver = self._receiver(frame)
        if receiver is None:
            return
        host, path = self._hosts[sender], self._paths[sender][receiver]
        host.sent += 1
        host.sent_bytes += len(frame) - self._header
        if not path.open:
            host.closed += 1
            return
        wire = len(frame) - self._header + FRAME_BYTES
        out = host.up.book(t, wire)
        if out >= 0 and path.loss and self._rng.random() < path.loss:
            host.lost += 1
            return
        if out >= 0:
            out = path.own.book(out, wire)
        if out < 0 or self._in_flight > MOST_IN_FLIGHT:
            host.queue_drops += 1
            return
        path.last = max(out, path.last, out + path.latency + path.jitter_at(out, self._rng))
        self._in_flight += wire
        self._push(path.last, False, sender, receiver, frame)

    def _receiver(self, frame: bytes) -> int | None:
        at, place = self._header, -1
        if len(frame) >= at + 20 and frame[at] >> 4 == 4 and frame[at + 16] == 10:
            place = (frame[at + 18] << 8 | frame[at + 19]) - 1
        elif len(frame) >= at + 40 and frame[at] >> 4 == 6 and frame[at + 24] == 0xFD:
            place = (frame[at + 38] << 8 | frame[at + 39]) - 1
        return place if 0 <= place < len(self._hosts) else None

    def _push(self, at: float, arrived: bool, sender: int, receiver: int, frame: bytes) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, arrived, sender, receiver, frame))

    def _run_due(self, t: float) -> None:
        for _ in range(DELIVERIES):
            if not self._heap or self._heap[0][0] > t:
                return
            at, _, arrived, sender, receiver, frame = heapq.heappop(self._heap)
            wire = len(frame) - self._header + FRAME_BYTES
            if not arrived:
                at = self._hosts[receiver].down.book(at, wire)
                if at > t:
                    self._push(at, True, sender, receiver, frame)
                    continue
            self._in_flight -= wire
            if at < 0:
                self._hosts[receiver].queue_drops += 1
            else:
                self._deliver(at, sender, receiver, frame)

    def _deliver(self, due: float, sender: int, receiver: int, frame: bytes) -> None:
        host = self._hosts[receiver]
        if not self._paths[sender][receiver].open:
            host.closed += 1
        else:
            try:
                os.write(host.fd, frame)
                host.received += 1
                host.received_bytes += len(frame) - self._header
            except OSError:
                host.failed += 1
        late = time.monotonic() - due
        bucket = math.ceil(math.log(late / 1e-5, 1.25)) if late > 1e-5 else 0
        self._late[min(bucket, LATE_BUCKETS - 1)] += 1

    # --- commands ----------------------------------------------------------------------------------------

    def _obey_all(self) -> None:
        while True:
            try:
                text = self._control.recv(512, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not text:
                sys.exit(0)  # The lab is gone.
            self._control.send(self._obey(text.decode("ascii").split()).encode("ascii"))

    def _obey(self, words: list[str]) -> str:
        match words:
            case ["host", place, *values] if len(values) == 4:
                up, down, queue_up, queue_down = map(float, values)
                host = self._hosts[int(place)]
                host.up.set(up, queue_up)
                host.down.set(down, queue_down)
            case ["pair", a, b, is_open, *values] if len(values) == 6:
                latency, jitter, jitter_time, loss, rate, queue = map(float, values)
                path = self._paths[int(a)][int(b)]
                path.open, path.latency, path.loss = is_open == "1", latency, loss
                if jitter != path.jitter:
                    path.grid_at = -1e9
                path.jitter, path.grid = jitter, max(0.001, jitter_time / GRID_STEPS)
                path.own.set(rate, queue)
            case ["mark"]:
                self._late = [0] * LATE_BUCKETS
            case ["stats"]:
                hosts = [host.counts() for host in self._hosts]
                return json.dumps({"in_flight": self._in_flight, "late": self._late, "hosts": hosts})
            case _:
                return "unknown command"
        return "ok"


def hurry() -> None:
    """To be on time among busy programs: real time if allowed, and timers that are not rounded."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


def main(arguments: list[str]) -> None:
    control, header, vnet, seed, *fds = map(int, arguments)
    if vnet:
        raise SystemExit("this emulator needs packets that are cut to size")
    hurry()
    Emulator(socket.socket(fileno=control), header, seed, fds).run()


if __name__ == "__main__":
    main(sys.argv[1:])
