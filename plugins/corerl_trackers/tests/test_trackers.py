"""Each tracker's library, offline: what it stored is read back. Those that are not installed are skipped."""

import functools
import json
import sqlite3
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stored import records_of

from corerl.contracts.trackers import TrackedRun
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.telemetry.metrics_log import MetricsLog, OpenTracker

CONFIG = {"actor": {"lr": 1e-6, "betas": [0.9, 0.999]}, "seed": None}
COLUMNS = ["prompt", "response", "score"]
ROWS = [["1 + 1\n= ?", "2 | 2", 1.0], ["2 + 2 = ?", "", None]]

Series = dict[tuple[str, int], float]


def opener(name: str, run_dir: Path, resumed_from: int | None = None, **options: Any) -> OpenTracker:
    selected = Plugins().registries.trackers.select({"name": name, **options}, "tracking.loggers[0]")
    factory = selected.load()
    return lambda run_id: factory(TrackedRun("project", "trial", run_dir, CONFIG, 3, resumed_from, run_id))


def track(name: str, tmp_path: Path, *, resume: bool = True, **options: Any) -> tuple[Path, Mapping[str, str]]:
    """Steps 0 to 2 and a table; then again from a checkpoint of step 1, with other numbers."""
    run_dir = tmp_path / "20260101-000000"
    run_dir.mkdir()
    log = MetricsLog(run_dir / "metrics.jsonl", {name: opener(name, run_dir, **options)})
    for step in range(3):
        log.write({"critic/score/mean": step / 4, "val-core/openai/gsm8k/reward/mean@8": 0.5}, step)
    log.write_samples(2, COLUMNS, ROWS)
    log.close()
    state = log.state()
    if resume:
        again = opener(name, run_dir, 1, **options)
        log = MetricsLog(run_dir / "metrics.jsonl", {name: again}, last_step=1, state=state)
        log.write({"critic/score/mean": 8.0}, 2)
        log.write({"critic/score/mean": 9.0}, 3)
        log.close()
        assert log.state() == state
    return run_dir, state


def wandb_series(path: Path) -> tuple[str, Series]:
    """The run's id, and what was logged; W&B's own process may still be writing when a run is finished."""
    from wandb.proto import wandb_internal_pb2

    run_id, series = "", {}
    for _ in range(200):
        for data in records_of(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            run_id = record.run.run_id or run_id
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            for name in items.keys() & {"critic/score/mean", "val-core/openai/gsm8k/reward/mean@8"}:
                series[name, int(items["_step"])] = float(items[name])
            if record.HasField("exit"):
                return run_id, series
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def check_wandb(run_dir: Path, run_id: str) -> None:
    first, second = (wandb_series(path) for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")))
    assert first[0] == second[0] == run_id
    assert first[1]["critic/score/mean", 1] == 0.25
    assert first[1]["val-core/openai/gsm8k/reward/mean@8", 2] == 0.5
    assert second[1] == {("critic/score/mean", 2): 8.0, ("critic/score/mean", 3): 9.0}
    [table] = run_dir.glob("wandb/offline-run-*/files/media/table/val/generations_2_*.json")
    assert json.loads(table.read_text())["data"] == ROWS


def test_tensorboard_event_files_hold_all_and_a_resume_hides_later_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir, state = track("tensorboard", tmp_path)
    assert state == {}
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    score = [(event.step, event.value) for event in events.Scalars("critic/score/mean")]
    assert score == [(0, 0.0), (1, 0.25), (2, 8.0), (3, 9.0)]
    assert [event.value for event in events.Scalars("val-core/openai/gsm8k/reward/mean@8")] == [0.5, 0.5]
    [config] = events.Tensors("config/text_summary")
    assert b'"lr": 1e-06' in config.tensor_proto.string_val[0]


def test_a_tensorboard_table_keeps_line_breaks_and_bars_in_their_cells(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir, _ = track("tensorboard", tmp_path, resume=False, dir=str(tmp_path / "elsewhere"))
    events = EventAccumulator(str(tmp_path / "elsewhere"))
    events.Reload()
    [table] = events.Tensors("val/generations/text_summary")
    assert table.step == 2
    assert table.tensor_proto.string_val[0].decode() == (
        "| prompt | response | score |\n| --- | --- | --- |\n| 1 + 1<br>= ? | 2 \\| 2 | 1.0 |\n| 2 + 2 = ? |  |  |"
    )
    assert not (run_dir / "tensorboard").exists()


def test_wandb_offline_runs_hold_all_under_one_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir, state = track("wandb", tmp_path, mode="offline", tags=["a", "b"])
    check_wandb(run_dir, state["wandb"])


def test_vemlp_wandb_is_the_same_code_with_the_forks_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork cannot be installed from an index: here W&B itself stands in its place."""
    wandb = pytest.importorskip("wandb")
    fork, given = ModuleType("volcengine_ml_platform"), []
    fork.init = lambda **access: given.append(access)  # type: ignore[attr-defined]
    fork.wandb = ModuleType("wandb")  # type: ignore[attr-defined]
    fork.wandb.init = functools.partial(wandb.init, mode="offline")
    fork.wandb.Table = wandb.Table
    monkeypatch.setitem(sys.modules, "volcengine_ml_platform", fork)
    for name, value in (("VOLC_ACCESS_KEY_ID", "k"), ("VOLC_SECRET_ACCESS_KEY", "s"), ("MLP_TRACKING_REGION", "r")):
        monkeypatch.setenv(name, value)
    run_dir, state = track("vemlp_wandb", tmp_path)
    assert given == [{"ak": "k", "sk": "s", "region": "r"}] * 2
    check_wandb(run_dir, state["vemlp_wandb"])


def test_swanlab_offline_runs_hold_all_under_one_id(tmp_path: Path) -> None:
    pytest.importorskip("swanlab")
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    run_dir, state = track("swanlab", tmp_path, mode="offline")
    runs: list[Series] = []
    for path in sorted(run_dir.glob(f"swanlab/run-*/run-{state['swanlab']}.swanlab")):
        reader = DataStoreReader()
        reader.open(path)
        runs.append({})
        for data in reader:
            record = Record()
            record.ParseFromString(data)
            if record.scalar.key:
                runs[-1][record.scalar.key, record.scalar.step] = record.scalar.value.number
    first, second = runs
    assert [first["critic/score/mean", step] for step in range(3)] == [0.0, 0.25, 0.5]
    assert first["val-core/openai/gsm8k/reward/mean@8", 2] == 0.5
    assert second == {("critic/score/mean", 2): 8.0, ("critic/score/mean", 3): 9.0}
    [table] = run_dir.glob("swanlab/run-*/media/echarts/*.json")
    assert "2 | 2" in table.read_text()


def test_mlflow_database_holds_all_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir, state = track("mlflow", tmp_path)
    client, run_id = MlflowClient(tracking_uri=f"sqlite:///{run_dir}/mlflow.db"), state["mlflow"]
    history = [(metric.step, metric.value) for metric in client.get_metric_history(run_id, "critic/score/mean")]
    assert history == [(0, 0.0), (1, 0.25), (2, 0.5), (2, 8.0), (3, 9.0)]
    assert len(client.get_metric_history(run_id, "val-core/openai/gsm8k/reward/mean_at_8")) == 3
    run = client.get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("trial", "FINISHED")
    [table] = run_dir.glob("mlflow/*/artifacts/val_generations/step_000002.json")
    assert json.loads(table.read_text()) == {"columns": COLUMNS, "data": ROWS}
    assert next(run_dir.glob("mlflow/*/artifacts/config.yaml")).is_file()


def test_trackio_database_holds_all_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = pytest.importorskip("trackio")
    for module in ("trackio.utils", "trackio.sqlite_storage"):  # TRACKIO_DIR is read when they are imported
        if hasattr(sys.modules[module], "TRACKIO_DIR"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio")
    _, state = track("trackio", tmp_path)
    assert state == {"trackio": "trial-20260101-000000"}
    assert [run.name for run in trackio.Api().runs("project")] == ["trial-20260101-000000"]
    with sqlite3.connect(tmp_path / "trackio" / "project.db") as database:
        found = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    rows = [(step, json.loads(metrics)) for step, metrics in found]
    score = [(step, metrics["critic/score/mean"]) for step, metrics in rows if "critic/score/mean" in metrics]
    assert score == [(0, 0.0), (1, 0.25), (2, 0.5), (2, 8.0), (3, 9.0)]
    [table] = [metrics["val/generations"]["_value"] for _, metrics in rows if "val/generations" in metrics]
    assert table == [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


def test_a_clearml_offline_session_holds_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("clearml")
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path / "cache"))
    _, state = track("clearml", tmp_path, resume=False, offline=True)
    assert state == {}  # a session that was imported has another id
    [file] = (tmp_path / "cache").glob("offline/offline-*/metrics.jsonl")
    events = [event for line in file.read_text().splitlines() for event in json.loads(line)]
    score = [(event["iter"], event["value"]) for event in events if event.get("variant") == "score/mean"]
    assert score == [(0, 0.0), (1, 0.25), (2, 0.5)]
    [table] = [event for event in events if event["variant"] == "generations"]
    assert table["iter"] == 2 and "2 | 2" in table["plot_str"]


NAMES = ["tensorboard", "wandb", "swanlab", "mlflow", "clearml", "trackio", "prometheus", "opentelemetry"]


@pytest.mark.parametrize("name", [*NAMES, "vemlp_wandb"])
def test_a_missing_library_is_one_line_that_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    selected = Plugins().registries.trackers.select(name, "tracking.loggers[0]")
    with pytest.raises(ConfigError, match=r"^tracking\.loggers\[0\]: needs the module [\w.]+") as caught:
        selected.options.check("tracking.loggers[0]", None)
    assert name == "vemlp_wandb" or f"pip install 'corerl-trackers[{name}]'" in str(caught.value)


@pytest.mark.parametrize("name", [*NAMES, "vemlp_wandb"])
def test_no_library_is_imported_before_a_tracker_is_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (*NAMES, "prometheus_client", "volcengine_ml_platform"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises
    assert callable(Plugins().registries.trackers.select(name, "").load())


def test_extras_are_the_names_that_can_be_installed() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sorted(project["optional-dependencies"]) == sorted(NAMES)
