"""Strangers' words, made fit for a terminal or a log file.

In flows text that came over the network or out of a log; out flows text without control characters. Invariant:
nothing that passes here can move a cursor, colour a line, turn text around or begin a new line.
"""

from __future__ import annotations


def printable(text: str, limit: int = 200) -> str:
    """At most `limit` characters, each of them one that shows."""
    cut = text[:limit]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)
