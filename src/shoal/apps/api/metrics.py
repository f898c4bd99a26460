"""The coordinator's numbers in Prometheus' form.

In flow the status of every run at the moment of a scrape; out flows exposition text. Invariant: nothing is
counted twice or kept here: every number is read off the runs when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.apps.api.models import NodeMeasured, NodeStatus, RunStatus

_RUN_GAUGES: dict[str, tuple[str, Callable[[RunStatus], float | None]]] = {
    "shoal_round": ("Rounds sealed so far.", lambda run: run.round),
    "shoal_log_length": ("Entries in the log.", lambda run: run.head + 1),
    "shoal_nodes_live": ("Nodes whose lease runs.", lambda run: run.nodes_live),
    "shoal_train_loss": ("Mean training loss of the last round.", lambda run: run.train_loss),
    "shoal_validation_loss": ("The latest validation loss.", lambda run: run.validation_loss),
    "shoal_privacy_epsilon_budget": ("What each node may spend.", lambda run: _budget(run)),
    "shoal_snapshot_position": ("Position of the latest saved state.", lambda run: run.snapshot.at),
    "shoal_run_over": ("1 once the run has ended.", lambda run: float(run.stopped is not None)),
}
_RUN_COUNTERS: dict[str, tuple[str, Callable[[RunStatus], float]]] = {
    "shoal_tokens": ("Tokens in the updates that stand.", lambda run: run.tokens),
    "shoal_update_bytes": ("Bytes of the updates that stand.", lambda run: run.update_bytes),
}
_NODE_GAUGES: dict[str, tuple[str, Callable[[NodeStatus], float | None]]] = {
    "shoal_node_tokens_per_second": ("A node's training speed.", lambda node: node.tokens_per_s),
    "shoal_node_loss": ("A node's last local loss.", lambda node: node.loss),
    "shoal_node_up_bytes": ("Bytes a node has sent since it started.", lambda node: node.up_bytes),
    "shoal_node_down_bytes": ("Bytes a node has received since it started.", lambda node: node.down_bytes),
    "shoal_node_step_seconds": ("One inner step, as expected.", lambda node: _of(node, "step_s")),
    "shoal_node_rtt_seconds": ("To the coordinator and back, as expected.", lambda node: _of(node, "rtt_s")),
    "shoal_node_jitter_seconds": ("Change between round trips.", lambda node: _of(node, "jitter_s")),
    "shoal_node_loss_ratio": ("Sent again, of what was sent.", lambda node: _of(node, "loss")),
    "shoal_node_failed_ratio": ("Requests to peers that failed.", lambda node: _of(node, "failed")),
    "shoal_node_up_bytes_per_second": ("Upward, as expected.", lambda node: _of(node, "up_bytes_s")),
    "shoal_node_down_bytes_per_second": ("Downward, as expected.", lambda node: _of(node, "down_bytes_s")),
    "shoal_node_memory_bytes": ("Free for training.", lambda node: _of(node, "memory_bytes")),
    "shoal_node_uptime_ratio": ("Time here since it first came.", lambda node: _of(node, "uptime")),
    "shoal_node_delivered_ratio": ("Work that came in time.", lambda node: _of(node, "delivered")),
    "shoal_node_quality_ratio": ("What its updates were worth.", lambda node: _of(node, "quality")),
    "shoal_node_privacy_epsilon": ("What a node has spent of its privacy.", lambda node: node.epsilon),
    "shoal_node_reputation": ("What audits have come to, 0 to 1000.", lambda node: node.reputation),
    "shoal_node_health": ("The planner's score, 0 to 1.", lambda node: _of(node, "health")),
}


def _budget(run: RunStatus) -> float | None:
    return run.privacy.epsilon if run.privacy else None


def with_nodes(run: RunStatus, nodes: list[dict[str, Any]]) -> RunStatus:
    """A run's status with its nodes, which are fields of `NodeStatus` already."""
    made = [
        NodeStatus.model_construct(
            **{**fields, "measured": NodeMeasured.model_construct(**(fields["measured"] or {}))}
        )
        for fields in sorted(nodes, key=lambda fields: str(fields["node"]))
    ]
    return run.model_copy(update={"nodes": made})


def _of(node: NodeStatus, field: str) -> float | None:
    """What was measured of a node."""
    value: float | None = getattr(node.measured, field, None)
    return value


class _Runs(Collector):
    def __init__(self, runs: list[RunStatus]) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        for name, (text, read) in _RUN_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["run", "name"])
            for run in self._runs:
                if (value := read(run)) is not None:
                    gauge.add_metric([run.run, run.name], value)
            yield gauge
        for name, (text, count) in _RUN_COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["run", "name"])
            for run in self._runs:
                counter.add_metric([run.run, run.name], count(run))
            yield counter
        yield from self._nodes()

    def _nodes(self) -> Iterable[Metric]:
        for name, (text, read) in _NODE_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["run", "node", "name"])
            for run in self._runs:
                for node in run.nodes:
                    if (value := read(node)) is not None:
                        gauge.add_metric([run.run, node.node, node.name], value)
            yield gauge


def exposition(runs: list[RunStatus]) -> bytes:
    """The text of a scrape."""
    registry = CollectorRegistry()
    registry.register(_Runs(runs))
    return generate_latest(registry)
