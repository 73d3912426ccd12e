"""Trackers that other programs read from: a scraped port, and a collector of OTLP in this process."""

import http.server
import math
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.trackers import TrackedRun
from corerl.errors import ConfigError
from corerl.plugins import Plugins

STEP = {
    "critic/score/mean": 0.25,
    "val-core/openai/gsm8k/reward/mean@8": 0.5,
    "timing_s/gen": 2.0,
    "timing_s/update_actor": 1.5,
    "timing_s/step": 4.0,
}


def opened(name: str, folder: Path, **options: Any) -> Any:
    selected = Plugins().registries.trackers.select({"name": name, **options}, "tracking.loggers[0]")
    selected.options.check("tracking.loggers[0]", None)
    return selected.load()(TrackedRun("a project", 'a "trial"', folder, {}, 3))


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        text: str = page.read().decode()
    return text


def test_prometheus_scrapes_the_newest_value_of_every_metric_with_the_names_of_the_run(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    tracker = opened("prometheus", tmp_path, port=0)
    assert scraped(tracker.port).strip() == ""
    tracker.log(STEP, 1)
    tracker.log({"critic/score/mean": 0.75, "a/b": 1.0, "a_b": 2.0, "c": float("nan")}, 2)
    families = list(parser.text_string_to_metric_families(scraped(tracker.port)))
    assert {family.type for family in families} == {"gauge"}
    found = {sample.labels["metric"]: sample for family in families for sample in family.samples}
    for sample in found.values():
        assert (sample.labels["project"], sample.labels["experiment"]) == ("a project", 'a "trial"')
    values = {metric: sample.value for metric, sample in found.items()}
    assert values.pop("last_step_time_seconds") > 1e9 and values.pop("c") != 0
    assert values == {**STEP, "critic/score/mean": 0.75, "a/b": 1.0, "a_b": 2.0, "training/global_step": 2.0}
    assert found["val-core/openai/gsm8k/reward/mean@8"].name == "corerl_val_core_openai_gsm8k_reward_mean_8"
    tracker.close()
    with socket.create_server(("127.0.0.1", tracker.port)):  # it is free again
        pass


def test_odd_names_and_numbers_cost_no_other_metric_of_a_page(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    tracker = opened("prometheus", tmp_path, port=0)
    tracker.log({"half \ud800": 1.0, 'line\n"break': 2.0, "": 3.0, "huge": 10**400, "x": 0.5}, 1)
    families = list(parser.text_string_to_metric_families(scraped(tracker.port)))
    values = {sample.labels["metric"]: sample.value for family in families for sample in family.samples}
    del values["last_step_time_seconds"], values["training/global_step"]
    assert values == {"half _": 1.0, 'line_"break': 2.0, "_": 3.0, "huge": math.inf, "x": 0.5}
    tracker.close()


def test_a_taken_port_is_refused_before_the_start() -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        selected = Plugins().registries.trackers.select({"name": "prometheus", "port": port}, "tracking.loggers[0]")
        with pytest.raises(ConfigError, match=rf"loggers\[0\]\.port: 127\.0\.0\.1:{port} cannot be listened on"):
            selected.options.check("tracking.loggers[0]", None)


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """The address of a collector, and the bodies that it has taken by their paths."""
    taken: dict[str, list[bytes]] = {"/v1/metrics": [], "/v1/traces": []}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken[self.path].append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
        server.shutdown()


def test_a_collector_gets_each_steps_metrics_and_the_spans_of_its_parts(
    tmp_path: Path, collector: tuple[str, dict[str, list[bytes]]]
) -> None:
    metrics = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    traces = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    endpoint, taken = collector
    tracker = opened("opentelemetry", tmp_path, endpoint=endpoint)
    tracker.log({"val-core/openai/gsm8k/reward/mean@8": 0.125}, 0)  # an evaluation has no span
    tracker.log(STEP, 1)
    [_, body] = taken["/v1/metrics"]
    [of_resource] = metrics.ExportMetricsServiceRequest.FromString(body).resource_metrics
    resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
    assert (resource["service.name"], resource["corerl.experiment"]) == ("corerl", 'a "trial"')
    points = {metric.name: metric.gauge.data_points for metric in of_resource.scope_metrics[0].metrics}
    assert {name: [point.as_double for point in each] for name, each in points.items()} == {
        f"corerl/{name.replace('@', '_at_')}": [value] for name, value in STEP.items()
    }
    labels = {each.key: each.value.string_value for each in points["corerl/critic/score/mean"][0].attributes}
    assert labels == {"corerl.project": "a project", "corerl.experiment": 'a "trial"'}
    [body] = taken["/v1/traces"]
    [spans] = traces.ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans
    found = {span.name: span for span in spans.spans}
    step, gen, update = found["step"], found["gen"], found["update_actor"]
    assert len(found) == 3 and gen.parent_span_id == update.parent_span_id == step.span_id
    seconds = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in (step, gen, update)]
    assert seconds == pytest.approx([4.0, 2.0, 1.5])
    assert gen.start_time_unix_nano == step.start_time_unix_nano
    assert update.start_time_unix_nano == gen.end_time_unix_nano
    tracker.close()


def test_odd_names_and_numbers_cost_no_other_metric_of_a_step(
    tmp_path: Path, collector: tuple[str, dict[str, list[bytes]]]
) -> None:
    metrics = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    traces = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    endpoint, taken = collector
    tracker = opened("opentelemetry", tmp_path, endpoint=endpoint)
    odd = {"a@b": 1.0, "a_at_b": 2.0, "A_AT_B": 3.0, "π" * 300: 4.0, "half \ud800": 5.0, "": 6.0, "huge": 10**400}
    tracker.log({**odd, "timing_s/gen": math.nan, "timing_s/step": 2.5, "x": 0.5}, 1)
    tracker.log({"timing_s/step": math.inf, "x": 0.25}, 2)
    first, second = (metrics.ExportMetricsServiceRequest.FromString(body) for body in taken["/v1/metrics"])
    points = [
        {each.name: each.gauge.data_points[0].as_double for each in one.resource_metrics[0].scope_metrics[0].metrics}
        for one in (first, second)
    ]
    assert points[0]["corerl/x"] == 0.5 and points[1]["corerl/x"] == 0.25 and "corerl/huge" not in points[0]
    names = [name for name, value in points[0].items() if value in {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}]
    assert len({name.lower() for name in names}) == 6 and max(map(len, names)) == 255
    [body] = taken["/v1/traces"]
    [span] = traces.ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert span.name == "step"
    tracker.close()


def test_without_a_collector_a_step_ends_with_an_error_within_its_deadline(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    tracker = opened("opentelemetry", tmp_path, endpoint="http://127.0.0.1:9", timeout=0.3)
    with pytest.raises(ConnectionError, match=r"no OTLP collector took the step at endpoint http://127\.0\.0\.1:9"):
        tracker.log(STEP, 1)
    tracker.close()


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    selected = Plugins().registries.trackers.select({"name": "opentelemetry", "endpoint": "localhost:4318"}, "x")
    with pytest.raises(ConfigError, match=r"x\.endpoint: must be a URL such as http://localhost:4318"):
        selected.options.check("x", None)
