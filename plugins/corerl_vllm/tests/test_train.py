"""The same run with ``vllm`` and with ``hf``; runs that are killed at work, and under Ray."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import engines_of, gone_within, group_members, left_in_shared_memory, unused_shared_memory
from vllm_engine import one_more_engine

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_engines import kernels

pytestmark = [
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif("CORERL_TEST_DEVICE" in os.environ, reason="compares with hf on the CPU"),
    pytest.mark.skipif("CORERL_EVERY_ENGINE" not in os.environ, reason="starts more engines: CORERL_EVERY_ENGINE=1"),
]


def metrics_of(material: Path, name: str, *overrides: str, experiment: str | None = None) -> list[dict[str, Any]]:
    experiment = experiment or name
    names = [f"tracking.experiment_name={experiment}", f"rollout.name={name}"]
    assert run(["train", str(material / "config.yaml"), *names, *overrides]) == 0
    [folder] = (material / "runs" / experiment).iterdir()
    return list(read_metrics(folder / "metrics.jsonl"))


class Killed(NamedTuple):
    """What a run said until it was killed, its engine's processes and files before, and what was left thereafter."""

    metrics: list[dict[str, Any]]
    alive: set[int]
    files: set[str]
    gone: bool
    left: set[str]


@pytest.fixture(scope="module")
def killed(material: Path, engine_python: str) -> Killed:
    """A run with vLLM in a process of its own, killed after its second step."""
    options = [f"rollout.options.python={engine_python}", "rollout.options.load_format=dummy"]
    names = ["tracking.experiment_name=killed", "rollout.name=vllm", "trainer.total_training_steps=100000"]
    command = ["train", str(material / "config.yaml"), *names, *options]
    temporary = Path(tempfile.mkdtemp())  # a short path: an engine's sockets are there
    # kernels of the other tests' engines: a compiler takes 20 s for them
    variables = {"TMPDIR": str(temporary), **kernels.kept()}
    shared = unused_shared_memory()
    with (material / "killed.log").open("wb") as log:
        main = [sys.executable, "-c", "from corerl.cli.main import main; main()"]
        trainer = subprocess.Popen([*main, *command], stdout=log, stderr=subprocess.STDOUT, env=os.environ | variables)
    metrics: list[dict[str, Any]] = []
    try:
        deadline = time.monotonic() + 300
        while len(metrics) < 3:
            assert trainer.poll() is None and time.monotonic() < deadline, (material / "killed.log").read_text()
            time.sleep(0.1)
            metrics = [each for path in (material / "runs" / "killed").glob("*/*.jsonl") for each in read_metrics(path)]
        [engine] = engines_of(trainer.pid)
        alive, files = group_members(engine), files_in(temporary)
    finally:
        trainer.kill()
        trainer.wait()
    gone = gone_within(engine, 30)
    end = time.monotonic() + 30
    while (left := files_in(temporary)) and time.monotonic() < end:
        time.sleep(0.1)
    shutil.rmtree(temporary)
    return Killed(metrics[:3], alive, files, gone, left | left_in_shared_memory(shared, 30))


def files_in(folder: Path) -> set[str]:
    """Their paths, without what torch keeps for the next process."""
    paths = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {path for path in paths if not path.startswith("torchinductor_")}


def test_training_with_vllm_is_on_policy_and_evaluates_as_with_hf(material: Path, killed: Killed):
    hf = metrics_of(material, "hf")
    assert len(killed.metrics) == len(hf) == 3  # the evaluation before, two steps
    before = {key: value for key, value in killed.metrics[0].items() if key.startswith("val")}
    assert before
    assert before == {key: hf[0][key] for key in before}
    for step in killed.metrics[1:]:
        assert abs(step["rollout_corr/kl"]) < 1e-5  # the second step samples from updated weights
    assert killed.metrics[2]["training/global_step"] == 2


def test_no_process_outlives_a_trainer_that_is_killed_at_work(killed: Killed):
    assert len(killed.alive) > 1
    assert killed.gone


def test_no_file_of_an_engine_or_of_scorers_outlives_them(killed: Killed):
    sockets = [path for path in killed.files if path.startswith("corerl-vllm-") and "/tmp/" in path]
    assert sockets, killed.files
    assert killed.left == set()


@one_more_engine
def test_under_ray_an_engine_of_its_own_generates_ahead(
    material: Path, engine_python: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("corerl_ray")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        steps = metrics_of(
            material,
            "vllm",
            f"rollout.options.python={engine_python}",
            "actor.strategy=fsdp",
            "runtime={name: ray, options: {workers: 2, rollout_workers: 1}}",
            "rollout.verify_weights_freq=1",
            "trainer.max_staleness=1",
            "trainer.total_training_steps=4",
            "algorithm.rollout_correction.max_log_prob_diff=1e-4",
            experiment="ray",
        )[1:]
    finally:
        ray.shutdown()
    assert steps[0]["training/staleness/max"] == 0
    assert max(step["training/staleness/max"] for step in steps) <= 1
    assert all("rollout_corr/rejected_fraction" in step for step in steps)  # weights are on


@one_more_engine
def test_the_engine_has_the_values_of_override_config(material: Path, engine_python: str) -> None:
    """A run stops if the log-probs of engine and trainer differ; without YaRN in one of them, they would."""
    yarn = "{type: yarn, factor: 4.0, original_max_position_embeddings: 8}"
    steps = metrics_of(
        material,
        "vllm",
        f"rollout.options.python={engine_python}",
        f"model.override_config={{max_position_embeddings: 64, rope_scaling: {yarn}}}",
        "trainer.total_training_steps=1",
        "algorithm.rollout_correction.max_log_prob_diff=1e-3",
        experiment="yarn",
    )
    assert any("critic/score/mean" in step for step in steps)
