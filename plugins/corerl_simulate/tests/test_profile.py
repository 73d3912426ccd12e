"""Rates fitted to measurements; and, if asked for, a measured table beside a real step."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from corerl.cli.main import run
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl_check import ModelSize
from corerl_simulate import costs
from corerl_simulate.calibration import Decoded, Measured
from corerl_simulate.costs import Rows, TrainingCost
from corerl_simulate.fitting import fit, nonnegative
from corerl_simulate.job import EnginePool, Job, Trainers
from corerl_simulate.profiling import plain
from corerl_simulate.table import Engine, Gpu, Table, read_table

SIZE = ModelSize(
    parameters=494_000_000, trained=494_000_000, layer=15_000_000, beside=136_000_000, layers=24, hidden=896,
    intermediate=4864, heads=14, key_value_heads=2, head_size=64, vocabulary=151_936, bytes=2, positions=32_768,
)  # fmt: skip


def job(*, ray: bool) -> Job:
    config = TrainConfig(ModelConfig("x"), DataConfig(train_batch_size=64), rollout=RolloutConfig(n=4))
    config.actor.ppo_mini_batch_size = 64
    pool = EnginePool("vllm", 1, 1, 1, 1e9, 0)
    return Job(config, {"actor": SIZE}, Trainers(1), pool, old_log_probs=True, is_ray=ray, most=1024)


def known(*, ray: bool) -> Table:
    """The machine that the measurements are of."""
    table = read_table("h200")
    calls = {"ray_call": 0.3, "call": 0.0} if ray else {"call": 0.05, "ray_call": 0.0}
    training = dataclasses.replace(
        table.training, forward_passes=3.0, update_passes=7.0, optimizer_bytes=60, eager=1.0, ray_update=0.0, **calls
    )
    exchange = dataclasses.replace(
        table.exchange, weights=0.0, weights_rank=0.0, weights_gb=9.0, wake=0.4, handover=0.3
    )
    gpu = Gpu(80.0, 400.0, 400.0, 2.0)
    engine = Engine(step_ms=4.0, sample_us=12.0, latency=0.2, most=256)
    return dataclasses.replace(table, gpu=gpu, training=training, exchange=exchange, engines={"vllm": engine})


def measurements(of: Job, table: Table) -> Measured:
    rows = []
    for groups in (16, 32, 64):
        ids = torch.arange(groups).repeat_interleave(4)
        rows.append(Rows(torch.full((4 * groups,), 100), torch.full((4 * groups,), 300), ids))
    cost, speed = TrainingCost(of, "actor", table), costs.engine_speed(SIZE, of, table)
    decoded = []
    for prompts in (16, 64):
        for tokens in (50, 200):
            seconds = speed.latency + prompts * 100 * speed.prefill + speed.decode(4 * prompts, 400 * prompts, tokens)
            decoded.append(Decoded(prompts, 4, 100, tokens, seconds))
    return Measured(
        "by hand", 80.0, 400.0, 2.0,
        [(each, cost.forward(each).seconds) for each in rows], [(each, cost.update(each).seconds) for each in rows],
        decoded, costs.weights(of, table) - 0.4, 0.3, 0.4, 256,
    )  # fmt: skip


@pytest.mark.parametrize("ray", [False, True])
def test_the_rates_of_a_known_machine_are_found_from_its_calls(ray: bool, tmp_path: Path) -> None:
    of, table = job(ray=ray), known(ray=ray)
    fitted = fit(of, measurements(of, table), read_table("h200"), "mine")
    for name in ("forward_passes", "update_passes", "optimizer_bytes", "call", "ray_call"):
        assert getattr(fitted.table.training, name) == pytest.approx(getattr(table.training, name), rel=1e-4), name
    for name in ("step_ms", "sample_us", "latency", "most"):
        assert getattr(fitted.table.engines["vllm"], name) == pytest.approx(
            getattr(table.engines["vllm"], name), rel=1e-4
        )
    assert costs.weights(of, fitted.table) == pytest.approx(costs.weights(of, table))
    assert all(by_table == pytest.approx(took, rel=1e-4) for _, took, by_table in fitted.calls)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(plain(fitted.table)))
    assert read_table(str(tmp_path / "mine.yaml")).training.update_passes == pytest.approx(7.0, rel=1e-4)


def test_a_call_that_is_faster_than_the_bare_rate_raises_the_rate() -> None:
    of, table = job(ray=False), known(ray=False)
    slow = dataclasses.replace(measurements(of, table), matrix_tflops=40.0)  # another process took the device
    fitted = fit(of, slow, read_table("h200"), "mine")
    assert fitted.table.gpu.matrix_tflops > 100
    assert all(by_table == pytest.approx(took, rel=0.35) for _, took, by_table in fitted.calls)


def test_a_rate_is_never_negative() -> None:
    assert nonnegative([[1, 1, 1], [1, 2, 3]], [3, 2, 1])[1] == 0
    assert nonnegative([[1, 1], [0, 0]], [0.0, 0.0]) == [0, 0]


def test_a_table_needs_a_file_of_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("model: {path: none}\ndata: {train_files: [x.parquet]}\n")
    assert run(["profile", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "table.json")]) == 2
    assert "--out: must end in .yaml" in capsys.readouterr().err


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="two minutes: set CORERL_EVERY_COMBINATION=1")
def test_a_real_step_takes_between_a_third_and_three_times_of_the_predicted_time(tmp_path: Path) -> None:
    sizes = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "8"]
    assert run(["prepare", "arithmetic", "--out", str(tmp_path / "data"), *sizes]) == 0
    shape = ["--hidden-size", "128", "--layers", "4", "--heads", "4", "--kv-heads", "2", "--vocab-size", "300"]
    corpus = str(tmp_path / "data/train.parquet")
    assert run(["tiny-model", "--out", str(tmp_path / "model"), "--corpus", corpus, *shape]) == 0
    (tmp_path / "reward.py").write_text("def score(response, *rest):\n    return float(len(response) % 2)\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {tmp_path}/model}}
        data: {{train_files: [{corpus}], train_batch_size: 8, max_prompt_length: 28, max_response_length: 48}}
        actor: {{device: cpu, ppo_mini_batch_size: 4, use_kl_loss: true}}
        rollout: {{n: 4, ignore_eos: true}}
        reward: {{scorer: {tmp_path}/reward.py:score, manager: naive}}
        trainer: {{total_training_steps: 4, val_before_train: false, save_huggingface: never}}
        """
    )
    table = str(tmp_path / "mine.yaml")
    assert run(["profile", str(config), "--out", table]) == 0
    assert run(["train", str(config), f"trainer.output_dir={tmp_path / 'runs'}"]) == 0
    [metrics] = (tmp_path / "runs").rglob("metrics.jsonl")
    steps = [json.loads(line)["timing_s/step"] for line in metrics.read_text().splitlines()]
    from corerl_simulate.command import simulate

    shown = CliRunner().invoke(simulate, [str(config), "--table", table, "--json"], standalone_mode=False)
    [layout] = json.loads(re.sub(r"^[^{]*", "", shown.output))["layouts"]
    measured = sorted(steps)[len(steps) // 2]
    print(f"measured {measured:.2f} s, predicted {layout['seconds']:.2f} s")
    assert 1 / 3 < layout["seconds"] / measured < 3
