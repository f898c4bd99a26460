"""A run small enough to finish in seconds, on a coordinator in this process, and how to join it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.wire.ticket import Ticket, read_ticket, show_ticket

from .serving import Serving, serving

RECIPE = """
name: tiny
model: {{kind: gpt, layers: 1, width: 16, heads: 2}}
data: {{source: text, path: {text}, context: 16}}
inner: {{kind: adamw, batch_size: 4, lr: 0.01}}
strategy: {{preset: local-sgd, schedule: {{steps: 3}}, seal: {{kind: all-or-deadline, deadline_s: 20}}}}
budget: {{rounds: {rounds}}}
membership: {{heartbeat_s: 0.2, lease_s: 3, reconnect_s: 0.5}}
storage: {{snapshot_every: 1000}}
"""


@contextmanager
def tiny_run(
    folder: Path, *, rounds: int = 3, token_expires_s: float | None = None
) -> Iterator[tuple[Serving, str]]:
    """A coordinator with one run, and the run's ticket."""
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200, "utf-8")
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE.format(text=text, rounds=rounds), "utf-8")
    options = {"recipe": str(recipe), "token_expires_s": token_expires_s}
    with serving(folder / "coordinator", **options) as found:
        (line,) = [line for line in found.welcome if line.strip().startswith("shoal join ")]
        yield found, line.split()[-1]


def altered(ticket: str, **changes: object) -> str:
    """The ticket with some of its fields replaced."""
    old = read_ticket(ticket)
    fields = {name: changes.get(name, getattr(old, name)) for name in Ticket.__struct_fields__}
    return show_ticket(Ticket(**fields))  # type: ignore[arg-type]
