"""Room for many sockets: every connection is an open file, and systems allow few of them unless asked.

In flows how many are wanted; nothing flows out. Invariant: the system's own hard limit is never passed.
"""

from __future__ import annotations

SPARE = 256
"""Files, logs and peers besides the sockets."""


def allow_files(wanted: int) -> None:
    """Let this process have so many open files, as far as the system lets it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = wanted + SPARE
    if soft == resource.RLIM_INFINITY or soft >= room:
        return
    most = room if hard == resource.RLIM_INFINITY else min(room, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
