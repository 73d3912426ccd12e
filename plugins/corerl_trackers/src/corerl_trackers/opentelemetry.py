"""Tracker ``opentelemetry``: metrics and spans over OTLP."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from corerl.contracts.trackers import TrackedRun
from corerl_trackers.options import OpenTelemetryOptions
from corerl_trackers.valid import Names

TIMES = "timing_s/"
NANOSECONDS = 1_000_000_000
LONGEST = 255 - len("corerl/")
"""of a metric's name: OpenTelemetry's rule for names is letters, digits and ``_ . - /``, at most 255"""


class OpenTelemetryTracker:
    """Each metric is a gauge, each step a span, with a span for each of its parts.

    OpenTelemetry takes no values that are not finite. Only durations of parts are known: their spans follow each other
    from the step's start, in the order of the loop.
    """

    def __init__(self, run: TrackedRun, options: OpenTelemetryOptions) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._milliseconds = int(1000 * options.timeout)
        self._where = options.endpoint or "OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318"
        self._failed = False
        metric_exporter, span_exporter = _exporters(options)
        for exporter in (metric_exporter, span_exporter):
            exporter.export = self._noting(exporter.export)
        named = {"corerl.project": run.project_name, "corerl.experiment": run.experiment_name}
        resource = Resource.create({"service.name": options.service_name, "corerl.run": run.folder.name, **named})
        reader = PeriodicExportingMetricReader(metric_exporter, float("inf"), self._milliseconds)
        self._metrics = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._spans.add_span_processor(BatchSpanProcessor(span_exporter))
        self._meter, self._tracer = self._metrics.get_meter("corerl"), self._spans.get_tracer("corerl")
        self._labels, self._gauges = named, dict[str, Any]()
        self._names = Names(
            r"[^A-Za-z0-9_.\-/]", "_at_", 248
        )  # OpenTelemetry's rule, which also allows at most 255 letters

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """
        Raises:
            ConnectionError: no collector took them within ``timeout`` seconds.
        """
        numbers = {name: value for name, value in self._names.numbers(metrics).items() if math.isfinite(value)}
        for name, value in numbers.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"corerl/{name}")
            self._gauges[name].set(value, self._labels)
        self._add_spans(numbers, step)
        self._failed = False
        for provider in (self._metrics, self._spans):
            provider.force_flush(self._milliseconds)
        if self._failed:
            raise ConnectionError(f"no OTLP collector took the step at endpoint {self._where}")

    def _add_spans(self, metrics: Mapping[str, float], step: int) -> None:
        from opentelemetry.trace import set_span_in_context

        parts = {name.removeprefix(TIMES): value for name, value in metrics.items() if name.startswith(TIMES)}
        whole = parts.pop("step", None)
        if whole is None:  # an evaluation before the first step
            return
        end = time.time_ns()
        start = at = end - int(whole * NANOSECONDS)
        span = self._tracer.start_span("step", start_time=start, attributes={"corerl.step": step, **self._labels})
        context = set_span_in_context(span)
        for name, seconds in parts.items():
            ended = min(end, at + max(0, int(seconds * NANOSECONDS)))
            attributes = {"corerl.step": step, "corerl.seconds": seconds}
            self._tracer.start_span(name, context, start_time=at, attributes=attributes).end(ended)
            at = ended
        span.end(end)

    def _noting(self, export: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose failure is noted: the SDK logs it, and returns nothing."""

        def noting(*arguments: Any, **more: Any) -> Any:
            result = export(*arguments, **more)
            self._failed |= result.name != "SUCCESS"
            return result

        return noting

    def close(self) -> None:
        """Send the rest."""
        self._metrics.shutdown(self._milliseconds)
        self._spans.shutdown()


def _exporters(options: OpenTelemetryOptions) -> tuple[Any, Any]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    base = None if options.endpoint is None else options.endpoint.rstrip("/")
    endpoints = [None if base is None else f"{base}/v1/{signal}" for signal in ("metrics", "traces")]
    timeout: Any = options.timeout  # seconds, of all tries together
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)  # a failure is the tracker's notice
    return OTLPMetricExporter(endpoints[0], timeout=timeout), OTLPSpanExporter(endpoints[1], timeout=timeout)
