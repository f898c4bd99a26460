"""A network as the commands that every emulator obeys.

In flows a `Network` and what has changed in it; out flow lines of text (`emulator.c` says what they mean).
Invariant: a line states everything about its host or pair, so that it does not matter what was said before.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.lab.links import Between, Change, Network, Power, Tune


def all_orders(network: Network) -> Iterator[str]:
    """Everything, for an emulator that knows nothing yet."""
    names = tuple(network.names)
    yield from (_host(network, name) for name in names)
    yield from (_pair(network, a, b) for a in names for b in names)


def orders_after(network: Network, change: Change) -> Iterator[str]:
    """What an emulator must be told, once this change has led to this network."""
    names = tuple(network.names)
    match change:
        case Between(ways, _):
            yield from (_pair(network, a, b) for a, b in sorted(ways))
        case Power(hosts, _) | Tune(hosts, _):
            yield from (_host(network, name) for name in hosts)
            touched = set(hosts)
            yield from (_pair(network, a, b) for a in names for b in names if a in touched or b in touched)


def _host(network: Network, name: str) -> str:
    place = network.names[name]
    line = network.lines[place]
    rates = (line.up_bytes_s, line.down_bytes_s)
    values = [*rates, *(line.queue_bytes(rate) for rate in rates)]
    return f"host {place} {_shown(values)}"


def _pair(network: Network, sender: str, receiver: str) -> str:
    path = network.path(sender, receiver)
    queue = network.lines[network.names[sender]].queue_bytes(path.rate_bytes_s)
    values = [path.latency_s, path.jitter_s, path.jitter_time_s, path.loss, path.rate_bytes_s, queue]
    places = f"{network.names[sender]} {network.names[receiver]}"
    return f"pair {places} {int(path.open)} {_shown(values)}"


def _shown(values: list[float]) -> str:
    return " ".join(f"{value:.9g}" for value in values)
