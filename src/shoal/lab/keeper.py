"""The keeper: a process in namespaces of its own, in which all of a lab lives.

In flow a description of the hosts, then programs to start, with their descriptors; out flow news of them. Invariant:
it is the first process of its own process namespace. Whatever ends it (the lab's end, or the death of the process
that made the lab), the kernel ends every program in there and forgets every host.

    the lab's process -> keeper, outside (enters the namespaces, waits) -> keeper, inside -> emulator, programs
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from shoal.base.errors import ShoalError
from shoal.lab import doorways, kernel, messages
from shoal.lab.netem import can_netem

INSIDE = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWUTS
LIBRARY = Path(__file__).parent


def main(control_fd: int, owner: int) -> None:
    """Build a lab for the process `owner`, as the first message says, and keep it until it is gone."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)  # Not for the programs that will be started.
    try:
        owner_gone = os.pidfd_open(owner)
        received = messages.receive(control)
        if received is None:
            return
        request, (emulator_end,) = received
        privileged = _enter()
        inner = os.fork()
        if inner == 0:
            kernel.die_with_parent()
            _inside(control, request, emulator_end, privileged)
        os.close(emulator_end)
        control.close()
        _wait(inner, owner_gone)
    except ShoalError as error:
        _tell_failure(control, error)


def _tell_failure(control: socket.socket, error: ShoalError) -> None:
    told = {"code": error.code, "cause": error.cause, "next_step": error.next_step}
    with contextlib.suppress(OSError):
        messages.send(control, {"news": "failed", **told})


def _enter() -> bool:
    """Into new namespaces; whether that took no user namespace. Raises SH-LAB-03."""
    with contextlib.suppress(PermissionError):
        kernel.unshare(INSIDE)
        return True
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        kernel.unshare(INSIDE)
    except OSError as error:
        raise ShoalError(
            "SH-LAB-03",
            f"neither root's namespaces nor a user namespace can be had here ({error})",
            "run it as root, or allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); in a container, "
            "start it with --privileged",
        ) from None
    return False


def _wait(inner: int, owner_gone: int) -> None:
    """Until the inner keeper ends, or the lab's owner does; then it ends, and all that it started."""
    inner_gone = os.pidfd_open(inner)
    select.select([inner_gone, owner_gone], [], [])
    with contextlib.suppress(ProcessLookupError):
        os.kill(inner, signal.SIGKILL)
    os.waitpid(inner, 0)


def _inside(control: socket.socket, request: dict[str, Any], emulator_end: int, privileged: bool) -> NoReturn:
    status = 1
    try:
        keeper = Keeper(control, request, emulator_end, privileged)
        keeper.run()
        status = 0
    except ShoalError as error:
        _tell_failure(control, error)
    finally:
        os._exit(status)


class Keeper:
    """The first process inside."""

    def __init__(
        self, control: socket.socket, request: dict[str, Any], emulator_end: int, privileged: bool
    ) -> None:
        self._control = control
        self._names: list[str] = request["hosts"]
        self._running: dict[int, int] = {}
        """Programs by process id, with the numbers that the lab gave them."""
        _own_files(request["hosts_file"])
        kind, native = _choose(request["emulators"], request["native"])
        self._hosts = doorways.build(
            len(self._names),
            mtu=request["mtu"],
            vnet=kind == "native",
            congestion=request["congestion"],
            hub=kind == "netem",
        )
        self._emulator = _start_emulator(kind, native, request["seed"], self._hosts, emulator_end)
        os.close(emulator_end)
        self._drops = [0] * len(self._names)
        about = {"emulator": kind, "doorway": self._hosts.doorway, "congestion": self._hosts.congestion}
        messages.send(control, {"news": "ready", "privileged": privileged, **about})

    def run(self) -> None:
        """Serve until the lab closes its end."""
        woken, waker = os.pipe()
        for end in (woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            ready, _, _ = select.select([self._control.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                received = messages.receive(self._control)
                if received is None:
                    return
                self._serve(*received)

    def _serve(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            match request["ask"]:
                case "start":
                    self._start(request, fds)
                case "signal":
                    self._signal(request["number"], request["signal"])
                case "signal-host":
                    self._signal_host(request["host"], request["signal"])
                case "drops":
                    messages.send(self._control, {"news": "drops", "drops": self._count_drops()})
        finally:
            for fd in fds:
                os.close(fd)

    # --- programs ----------------------------------------------------------------------------------------

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        failure, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become(request, fds, told)
        os.close(told)
        with os.fdopen(failure) as reading:
            why = reading.read()  # Ends when the program has replaced this one, or said why not.
        self._running[pid] = request["number"]
        messages.send(self._control, {"news": "started", "number": request["number"], "pid": pid, "why": why})
        self._reap()

    def _become(self, request: dict[str, Any], fds: list[int], told: int) -> NoReturn:
        try:
            os.setsid()
            for place, fd in enumerate(fds):
                os.dup2(fd, place)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            kernel.setns(self._hosts.networks[request["host"]], kernel.NEWNET)
            kernel.unshare(kernel.NEWUTS)
            socket.sethostname(self._names[request["host"]])
            os.chdir(request["folder"])
            environment = {**os.environ, **request["environment"]}
            os.execvpe(request["words"][0], request["words"], environment)  # noqa: S606 (what was asked for)
        except OSError as error:
            os.write(told, str(error).encode())
        finally:
            os._exit(127)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._emulator.pid:
                messages.send(self._control, {"news": "emulator-ended", "status": status})
            elif pid in self._running:
                code = os.waitstatus_to_exitcode(status)
                messages.send(
                    self._control, {"news": "ended", "number": self._running.pop(pid), "code": code}
                )

    def _signal(self, number: int, which: int) -> None:
        for pid, mine in self._running.items():
            if mine == number:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, which)

    def _signal_host(self, host: int, which: int) -> None:
        """To every process in the host, wherever it came from; again, until nobody new has come."""
        wanted, seen = os.fstat(self._hosts.networks[host]).st_ino, set[int]()
        while new := {pid for pid in _processes() if _network_of(pid) == wanted} - seen:
            seen |= new
            for pid in sorted(new):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)

    def _count_drops(self) -> list[int]:
        """Packets of each host that nobody took in time: by its interface, and by the socket that reads it. Where the
        kernel itself carries them there is no such thing."""
        if self._hosts.doorway == "hub":
            return [0] * len(self._names)
        home = kernel.own_network()
        found = []
        for place, network in enumerate(self._hosts.networks):
            kernel.setns(network, kernel.NEWNET)
            found.append(kernel.interface_drops())
            if self._hosts.doorway == "packet":
                self._drops[place] += kernel.socket_drops(self._hosts.doors[place])
        kernel.setns(home, kernel.NEWNET)
        os.close(home)
        return [here + there for here, there in zip(found, self._drops, strict=True)]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _network_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    return None


def _own_files(hosts_file: str) -> None:
    """A view of /proc that has this namespace's processes, and an /etc/hosts with the lab's names."""
    try:
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", 0)
        kernel.mount(hosts_file, "/etc/hosts", "", kernel.MS_BIND)
    except OSError as error:
        raise ShoalError(
            "SH-LAB-03", f"the lab's own /proc and /etc/hosts cannot be mounted: {error}", "run it as root"
        ) from None


def _choose(kinds: list[str], native: str | None) -> tuple[str, str]:
    """The first emulator of these that this machine can run. Raises SH-LAB-04."""
    for kind in kinds:
        if kind == "native" and native is not None:
            return kind, native
        if kind == "python" or (kind == "netem" and can_netem()):
            return kind, ""
    raise ShoalError(
        "SH-LAB-04",
        f"none of these emulators can run here: {', '.join(kinds)}",
        "native needs a C compiler (cc), netem a kernel with sch_netem and the tc program; python always runs",
    )


def _start_emulator(
    kind: str, native: str, seed: int, hosts: doorways.Hosts, control: int
) -> subprocess.Popen[bytes]:
    script = LIBRARY / ("netem.py" if kind == "netem" else "emulator.py")
    program = [native] if kind == "native" else [sys.executable, "-I", str(script)]
    doors = hosts.networks if kind == "netem" else hosts.doors
    numbers = [control, hosts.header_bytes, int(kind == "native"), seed % 2**31, *doors]
    try:
        return subprocess.Popen([*program, *map(str, numbers)], pass_fds=[control, *doors])
    except OSError as error:
        raise ShoalError(
            "SH-LAB-04", f"the emulator cannot be started: {error}", "try --emulator python"
        ) from None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
