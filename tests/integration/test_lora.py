"""A run that trains adapters: the reward rises, the engine gets adapters, and it resumes bit for bit."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl.trainer import build
from corerl_testing.tiny_model import tiny_model

TIMINGS = ("timing", "perf/")


@pytest.fixture
def train(material, tmp_path):
    """Train with overrides; returns the run's folder."""
    (tmp_path / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n"
        "    return sum(each.isascii() and each.isalpha() for each in response) / 6\n"
    )
    (tmp_path / "config.yaml").write_text(
        f"""
        model: {{path: {tiny_model()}, lora_rank: 8, lora_alpha: 32}}
        data: {{train_files: [{material}/data/train.parquet], train_batch_size: 8, max_prompt_length: 128,
               max_response_length: 6}}
        actor: {{device: cpu, optim: {{lr: 3e-2}}, ppo_mini_batch_size: 8}}
        rollout: {{n: 8, ignore_eos: true}}
        reward: {{scorer: {tmp_path}/reward.py:score, manager: naive}}
        trainer: {{total_training_steps: 12, total_epochs: 10, val_before_train: false}}
        tracking: {{loggers: []}}
        """
    )

    def start(name, *overrides):
        assert run(["train", str(tmp_path / "config.yaml"), f"trainer.output_dir={tmp_path / name}", *overrides]) == 0
        return next((tmp_path / name / "default").iterdir())

    return start


def numbers(folder):
    return [
        {name: value for name, value in record.items() if not name.startswith(TIMINGS)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


@pytest.mark.parametrize("strategy", ["torch", "fsdp"])
def test_the_reward_rises_and_only_adapters_are_in_the_checkpoint(train, strategy):
    folder = train("a", f"actor.strategy={strategy}")
    scores = [record["critic/score/mean"] for record in numbers(folder) if "critic/score/mean" in record]
    assert len(scores) == 12
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.1
    checkpoint = folder / "checkpoints" / "global_step_12"
    exported = load_file(checkpoint / "huggingface" / "model.safetensors")
    base = load_file(tiny_model() / "model.safetensors")
    changed = {name for name in base if not torch.equal(base[name], exported[name])}
    assert changed == {name for name in base if name.endswith("proj.weight")}
    if strategy == "torch":
        assert all(".lora_" in name for name in load_file(checkpoint / "actor" / "weights.safetensors"))


def test_the_reference_is_the_policy_without_its_adapters_and_no_second_model(train, monkeypatch, tmp_path):
    started = []

    class Counted(build.ReferenceWorker):
        def __init__(self, *args):
            started.append(args)
            super().__init__(*args)

    monkeypatch.setattr(build, "ReferenceWorker", Counted)
    asked = ("actor.use_kl_loss=true", "trainer.total_training_steps=2", "ref.log_prob_max_token_len_per_gpu=256")
    own = train("own", *asked)
    assert not started
    copy = shutil.copytree(tiny_model(), tmp_path / "copy")
    other = train("other", *asked, f"ref.path={copy}", "ref.strategy={name: fsdp, use_remove_padding: false}")
    assert len(started) == 1
    assert numbers(own) == numbers(other)
    assert [record["actor/kl_loss"] for record in numbers(own) if "actor/kl_loss" in record][-1] > 0


def test_adapters_and_merged_weights_train_alike(train):
    apart, merged = (
        numbers(train(lora, f"rollout.lora={lora}", "trainer.total_training_steps=2")) for lora in ("adapter", "merged")
    )
    for left, right in zip(apart, merged, strict=True):
        assert left.keys() == right.keys()
        for name in ("actor/loss", "critic/score/mean", "actor/grad_norm"):
            assert left.get(name) == pytest.approx(right.get(name), abs=1e-4)


def test_a_run_goes_on_bit_for_bit(train):
    straight = train("straight", "trainer.total_training_steps=3")
    begun = train("begun", "trainer.total_training_steps=2")
    resumed = train("begun", "trainer.total_training_steps=3", f"trainer.resume_mode={begun}")
    assert numbers(resumed)[-1] == numbers(straight)[-1]
