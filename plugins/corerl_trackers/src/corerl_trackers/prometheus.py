"""Tracker ``prometheus``: the metrics of the last step as gauges, on an HTTP port of this process."""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from corerl.contracts.trackers import TrackedRun
from corerl.terminal import say
from corerl_trackers.options import PrometheusOptions
from corerl_trackers.valid import Names

LABELS = ("project", "experiment", "metric")


class PrometheusTracker:
    """A server that Prometheus scrapes; a metric keeps its value until the next step that has it.

    A gauge is named like its metric, with ``corerl_`` before it and ``_`` for characters that Prometheus does not take;
    its label ``metric`` has the metric's own name.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, run: TrackedRun, options: PrometheusOptions) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._run, self._names = run, Names()
        self._metrics: dict[str, float] = {}
        self._time = 0.0
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(options.port, options.address, registry)
        self.port: int = self._server.server_address[1]
        say(f"Prometheus: http://{options.address}:{self.port}/metrics")

    def collect(self) -> Iterator[Any]:
        """For Prometheus's registry, in a thread of its server."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        shown = {"last_step_time_seconds": self._time, **self._metrics} if self._time else {}
        for metric, value in shown.items():
            name = gauge_name(metric)
            if name not in families:
                families[name] = GaugeMetricFamily(name, metric, labels=LABELS)
            families[name].add_metric([self._run.project_name, self._run.experiment_name, metric], value)
        yield from families.values()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        numbers = self._names.numbers(metrics)
        self._metrics, self._time = {**self._metrics, **numbers, "training/global_step": float(step)}, time.time()

    def close(self) -> None:
        """The port is free again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def gauge_name(metric: str) -> str:
    """The name of a gauge.

    >>> gauge_name("val-core/openai/gsm8k/reward/mean@8")
    'corerl_val_core_openai_gsm8k_reward_mean_8'
    """
    return "corerl_" + re.sub(r"\W", "_", metric, flags=re.ASCII)
