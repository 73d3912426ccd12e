"""A run of `corerl train` with two teachers, one of them the policy with a context, in this process."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from teaching import write_model

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    write_model(folder / "student")
    write_model(folder / "teacher", hidden=48, seed=1)
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{number}?"}],
            "ability": "",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
            "extra_info": {"split": "train", "index": number},
        }
        for number, source in enumerate(["sums", "code"] * 8)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet")
    (folder / "reward.py").write_text("def score(response, ground_truth, data_source, extra_info):\n    return 0.5\n")
    return folder


def train(material, out, *overrides):
    teachers = {
        "model": {"path": str(material / "teacher"), "data_sources": ["su*"]},
        "self": {"weights": "policy", "context": "{prompt} It is {ground_truth}."},
    }
    config = out.with_suffix(".yaml")
    config.write_text(f"model: {{path: {material}/student, dtype: fp32}}\n")
    values = [
        f"data={{train_files: [{material}/train.parquet], train_batch_size: 16, max_response_length: 6}}",
        "algorithm.adv_estimator=reinforce_plus_plus",
        "actor={device: cpu, optim: {lr: 3e-3}, ppo_mini_batch_size: 8}",
        f"actor.policy_loss={json.dumps({'name': 'distill', 'teachers': teachers})}",
        "rollout={n: 2, temperature: 0.9}",
        f"reward.scorer={material}/reward.py:score",
        f"trainer={{total_training_steps: 6, total_epochs: 6, save_freq: 3, log_rollouts_freq: -1, output_dir: {out}}}",
    ]
    assert run(["train", str(config), *values, *overrides]) == 0
    return next((out / "default").iterdir())


def test_the_divergence_falls_and_a_resumed_run_goes_on_bit_for_bit(material, tmp_path):
    straight = train(material, tmp_path / "a")
    stopped = train(material, tmp_path / "b", "trainer.total_training_steps=3")
    resumed = train(material, tmp_path / "b", f"trainer.resume_mode={stopped}", "trainer.resume_with_changes=true")
    records, others = (list(read_metrics(folder / "metrics.jsonl")) for folder in (straight, resumed))
    found = [record["actor/divergence"] for record in records]
    assert found[-1] < 0.8 * found[0]
    assert found == [record["actor/divergence"] for record in others]
    assert all(record["timing_s/teacher"] > 0 and record["timing_s/update_actor"] > 0 for record in records)
    weights = [folder / "checkpoints/global_step_6/actor/weights.safetensors" for folder in (straight, resumed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_models_on_the_cpu_while_generating_and_epochs_and_the_task(material, tmp_path):
    loss = {
        "name": "distill",
        "teacher": str(material / "teacher"),
        "form": "top_k",
        "divergence": "jsd",
        "use_task_reward": True,
    }
    folder = train(
        material,
        tmp_path / "a",
        f"actor.policy_loss={json.dumps(loss)}",
        "trainer.offload_while_generating=true",
        "actor.ppo_epochs=2",
        "trainer.total_training_steps=2",
    )
    records = list(read_metrics(folder / "metrics.jsonl"))
    assert records[-1]["actor/divergence"] < records[0]["actor/divergence"]
