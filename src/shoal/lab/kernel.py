"""The few system calls that a lab needs and Python 3.11 does not have, and how an interface is set up.

In flow descriptors and names; out flow changes to the calling thread's namespaces. Invariant: every failure is an
`OSError` with the kernel's own number; nothing here decides anything.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

NEWNS, NEWUTS, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_TUN_OFFLOADS = 0x1 | 0x2 | 0x4 | 0x8  # Checksums, TCP over IPv4 and IPv6, with ECN.
_SIOCSIFFLAGS, _SIOCGIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8913, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCSIFHWADDR, _SIOCSIFTXQLEN, _SIOCETHTOOL, _SIOCGIFINDEX = (
    0x8922,
    0x8924,
    0x8943,
    0x8946,
    0x8933,
)
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_ETHTOOL_OFF = (0x17, 0x19, 0x1F, 0x24, 0x2C)  # Transmit checksums, scatter/gather, TSO, GSO and GRO.
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_VNET_HDR = 263, 6, 15
_ETH_P_ALL = 0x0003
TX_QUEUE = 2000
NAME = "wan0"
SHARED_MAC = bytes.fromhex("02736c616201")
"""Every host's. Without ARP, packets go to the sender's own address, and so are for everyone."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    _checked(_libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str, flags: int) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, None))


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0))


def own_network() -> int:
    """A descriptor of the namespace that this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


# --- interfaces of the namespace that this process is in -------------------------------------------------


def open_tun(*, vnet: bool) -> int:
    """A new TUN device `wan0`; with `vnet` it takes and gives TCP that is not cut into packets yet."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if vnet else 0)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", NAME.encode(), flags))
        if vnet:
            fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_OFFLOADS)
    except OSError:
        os.close(device)
        raise
    return device


def open_packets(name: str, *, vnet: bool) -> int:
    """A socket that takes and gives every packet of an interface, link header included."""
    taken = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_ALL))
    try:
        for size in (socket.SO_RCVBUF, 33):  # 33 is SO_RCVBUFFORCE, for those who may.
            with contextlib.suppress(OSError):
                taken.setsockopt(socket.SOL_SOCKET, size, 16 << 20)
        if vnet:
            taken.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        taken.bind((name, _ETH_P_ALL))
    except OSError:
        taken.close()
        raise
    return taken.detach()


def set_up(name: str, *, mtu: int | None = None) -> None:
    """Switch an interface on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if mtu is not None:
            fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", name.encode(), mtu))
            with contextlib.suppress(PermissionError):  # A longer queue is for the machine's root only.
                fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", name.encode(), TX_QUEUE))
        _add_flags(control, name, _IFF_UP)


def set_addresses(name: str, place: int) -> None:
    """The addresses of the host at this place, counted from 0: 10.77.x.y and, where there is IPv6, fd77::xxyy."""
    number = place + 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, address in ((_SIOCSIFADDR, ipv4(place)), (_SIOCSIFNETMASK, "255.255.0.0")):
            packed = struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, request, packed)
        asked = bytearray(struct.pack("16s24x", name.encode()))
        fcntl.ioctl(control, _SIOCGIFINDEX, asked)
        (index,) = struct.unpack_from("i", asked, 16)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        address6 = socket.inet_pton(socket.AF_INET6, f"fd77::{number:x}")
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16sIi", address6, 64, index))


def ipv4(place: int) -> str:
    return f"10.77.{place + 1 >> 8}.{place + 1 & 255}"


def make_broadcast_like(name: str) -> None:
    """One hardware address for all, and no ARP: whoever gets a packet takes it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFHWADDR, struct.pack("16sH6s16x", name.encode(), 1, SHARED_MAC))
        _add_flags(control, name, _IFF_NOARP)


def offloads_off(name: str) -> None:
    """Packets as they would be on a wire: cut to size, with checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _ETHTOOL_OFF:
            value = array.array("B", struct.pack("II", command, 0))
            pointer, _ = value.buffer_info()
            with contextlib.suppress(OSError):
                fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), pointer))


def _add_flags(control: socket.socket, name: str, flags: int) -> None:
    asked = bytearray(struct.pack("16sH22x", name.encode(), 0))
    fcntl.ioctl(control, _SIOCGIFFLAGS, asked)
    (found,) = struct.unpack_from("H", asked, 16)
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), found | flags))


def interface_drops(name: str = NAME) -> int:
    """Packets that the interface dropped before anyone took them."""
    for row in Path("/proc/self/net/dev").read_text("ascii").splitlines():
        device, colon, counts = row.partition(":")
        if colon and device.strip() == name:
            cells = counts.split()
            return int(cells[3]) + int(cells[11])
    return 0


def socket_drops(door: int) -> int:
    """Packets that a packet socket had no room for since this was last asked."""
    with socket.socket(fileno=os.dup(door)) as asked:
        _, dropped = struct.unpack("II", asked.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return int(dropped)
