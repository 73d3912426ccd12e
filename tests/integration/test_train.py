"""Whole runs, in this process, on a model of a few thousand parameters."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from corerl.cli.main import run
from corerl.contracts.token_outputs import TokenOutputs
from corerl.objective import OwnPass
from corerl.telemetry.metrics_log import read_metrics
from corerl.trainer import updates
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_tools.status import read_status


@pytest.fixture
def train(material, tmp_path):
    """Train with overrides; returns the run's folder."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 8, max_prompt_length: 64, max_response_length: 6}}
        actor: {{device: cpu, optim: {{lr: 1e-2}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 4}}
        reward: {{scorer: {tmp_path}/reward.py:score}}
        trainer: {{total_training_steps: 3, test_freq: 2}}
        """
    )
    # random models solve nothing, so the reward is the share of even token counts: something that varies
    (tmp_path / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
    )

    def start(name, *overrides):
        code = run(["train", str(config), f"trainer.output_dir={tmp_path / name}", *overrides])
        assert code == 0
        return next((tmp_path / name / "default").iterdir())

    return start


TIMINGS = ("timing", "perf/")


def numbers(folder: Path):
    """The metrics of a run that do not measure time or memory."""
    return [
        {name: value for name, value in record.items() if not name.startswith(TIMINGS)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(train):
    first, again, other = train("a"), train("b"), train("c", "trainer.seed=1")
    assert numbers(first) == numbers(again)
    assert numbers(first) != numbers(other)


@pytest.mark.parametrize(
    "given", [[], ["algorithm.adv_estimator=gae", "actor.use_kl_loss=true"], ["model.lora_rank=2"]]
)
def test_the_only_update_of_a_step_gives_the_old_log_probs(train, monkeypatch, given):
    """One forward pass in place of two, the same metrics and weights."""
    passes = []
    forward = SingleDeviceStrategy.forward

    def counted(self, batch, wanted):
        passes.append(tuple(wanted))
        return forward(self, batch, wanted)

    monkeypatch.setattr(SingleDeviceStrategy, "forward", counted)
    given = [*given, "actor.ppo_mini_batch_size=8", "actor.entropy_coeff=0.01", "trainer.log_rollouts_freq=1"]
    once = train("once", *given)
    assert ("log_probs", "entropy") not in passes
    monkeypatch.setattr(updates, "update_gives_old_log_probs", lambda config, parts: False)
    twice = train("twice", *given)
    assert passes.count(("log_probs", "entropy")) == 3
    for one, other in zip(numbers(once), numbers(twice), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
    assert numbers(once)[-1]["actor/ppo_kl"] == 0
    files = sorted((twice / "rollouts").iterdir())
    assert len(files) == 3
    for file in files:
        own, other = (pq.read_table(folder / "rollouts" / file.name) for folder in (once, twice))
        assert own["response"] == other["response"]
        for mine, theirs in zip(own["log_probs"].to_pylist(), other["log_probs"].to_pylist(), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5)


def test_a_disagreement_after_the_only_update_ends_the_run_and_keeps_no_checkpoint_of_it(
    train, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(
        OwnPass, "outputs", lambda self, shape: TokenOutputs(torch.full(shape, -20.0), torch.zeros(shape))
    )
    with pytest.raises(AssertionError):
        train("wrong", "actor.ppo_mini_batch_size=8", "trainer.save_freq=1")
    assert "the engine has other weights" in capsys.readouterr().err
    assert not [*(tmp_path / "wrong").glob("**/global_step_1")]


def test_a_reference_that_reads_early_reads_the_same(train):
    kl = "actor.use_kl_loss=true", "rollout.free_cache_engine=false"
    at_once, early, again = train("a", *kl), *(train(name, *kl, "ref.overlap_parts=3") for name in "bc")
    assert numbers(early) == numbers(again)
    for one, other in zip(numbers(at_once), numbers(early), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    assert [*read_metrics(early / "metrics.jsonl")][-1]["timing_background_s/ref"] > 0


def test_evaluation_does_not_disturb_training(train):
    often, never = (
        train("a", "trainer.test_freq=1"),
        train("b", "trainer.test_freq=-1", "trainer.val_before_train=false"),
    )
    kept = [
        [{name: value for name, value in record.items() if not name.startswith("val-")} for record in numbers(folder)]
        for folder in (often, never)
    ]
    assert kept[0][1:] == kept[1]


def test_a_run_resumed_on_a_fresh_machine_goes_on_bit_for_bit(train, tmp_path):
    straight, remote = train("a"), f"trainer.remote_dir=file://{tmp_path}/bucket"
    stopped = train("b", "trainer.total_training_steps=2", "actor.optim.lr_scheduler_type=constant", remote)
    stopped.rename(tmp_path / "gone")
    resumed = train("b", remote)
    assert resumed == stopped
    assert (tmp_path / "bucket" / "default" / resumed.name / "global_step_3" / "manifest.json").is_file()
    assert numbers(straight)[-1] == numbers(resumed)[-1]
    for name in ("actor/weights.safetensors", "huggingface/model.safetensors"):
        paths = [folder / "checkpoints" / "global_step_3" / name for folder in (straight, resumed)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_run_folder_says_what_was_used_and_shows_samples(train):
    folder = train("a", "trainer.log_rollouts_freq=1")
    used = {part["part"]: part for part in json.loads((folder / "plugins.json").read_text())}
    assert (used["adv_estimator"]["name"], used["adv_estimator"]["distribution"]) == ("grpo", "corerl-grpo")
    assert used["policy_loss"]["options"]["clip_ratio_c"] == 3.0
    assert used["rollout_backend"]["version"]
    assert len(list((folder / "rollouts").glob("*.parquet"))) == 3
    assert read_status(folder).state == "finished"
    assert (folder / "checkpoints" / "latest").read_text() == "global_step_3"
    assert (folder / "report.html").is_file()
    assert not list(folder.rglob("*.tmp"))


NAMES = [
    *(f"actor/{name}" for name in ("pg_loss", "kl_loss", "ppo_kl", "pg_clipfrac", "pg_clipfrac_lower")),
    *(f"actor/{name}" for name in ("grad_norm", "lr", "entropy")),
    *(f"critic/{name}" for name in ("score/mean", "rewards/max", "advantages/min", "returns/mean")),
    *(f"response_length/{name}" for name in ("mean", "max", "min", "clip_ratio")),
    *(f"prompt_length/{name}" for name in ("mean", "max", "min", "clip_ratio")),
    *(f"global_seqlen/{name}" for name in ("min", "max", "mean", "balanced_min", "balanced_max", "minmax_diff")),
    *(f"perf/{name}" for name in ("throughput", "time_per_step", "total_num_tokens", "cpu_memory_used_gb")),
    *(f"timing_s/{name}" for name in ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor", "step")),
    *(f"timing_per_token_ms/{name}" for name in ("gen", "ref", "adv", "update_actor")),
    "training/rollout_probs_diff_max",
]


def test_metrics_carry_the_names_of_the_field(train):
    last = read_metrics(train("a", "actor.use_kl_loss=true") / "metrics.jsonl")[-1]
    for name in NAMES:
        assert name in last, name
    assert last["training/rollout_probs_diff_max"] < 1e-5


def test_a_kl_penalty_in_the_reward_is_subtracted(train):
    records = read_metrics(
        train("a", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5") / "metrics.jsonl"
    )
    last = [record for record in records if "critic/score/mean" in record][-1]
    assert last["actor/reward_kl_penalty_coeff"] == 0.5
    assert last["actor/reward_kl_penalty"] > 0
    assert last["critic/rewards/mean"] < last["critic/score/mean"]


def test_a_checkpoint_is_a_model_folder_to_train_on(train):
    folder = train("a", "trainer.total_training_steps=1")
    train("b", f"model.path={folder}/checkpoints/global_step_1/huggingface", "trainer.total_training_steps=1")


def test_sft_lowers_the_loss_and_writes_a_model_folder(material, tmp_path):
    (tmp_path / "sft.yaml").write_text(
        f"""
        model: {{path: {material}/model}}
        output: {tmp_path}/tuned
        data: {{train_files: [{material}/data/sft.parquet], val_files: [{material}/data/sft.parquet],
               train_batch_size: 20, max_length: 64}}
        optim: {{lr: 1e-2}}
        trainer: {{total_epochs: 10, test_freq: 10, device: cpu}}
        """
    )
    assert run(["sft", str(tmp_path / "sft.yaml")]) == 0
    records = read_metrics(tmp_path / "tuned" / "metrics.jsonl")
    losses = [record["val/loss"] for record in records if "val/loss" in record]
    assert len(records) == 20 and len(losses) == 2 and losses[1] < losses[0]
    assert (tmp_path / "tuned" / "model.safetensors").is_file()
    assert run(["sft", str(tmp_path / "sft.yaml")]) == 2


def test_sft_replaces_no_folder_that_is_no_model(tmp_path):
    (tmp_path / "precious.txt").touch()
    (tmp_path / "sft.yaml").write_text(f"{{model: {{path: x}}, output: {tmp_path}, overwrite: true}}")
    assert run(["sft", str(tmp_path / "sft.yaml")]) == 2
    assert (tmp_path / "precious.txt").exists()


def test_training_needs_neither_tools_nor_correction(train, capsys):
    alone = train("a", "plugins.disable=[corerl-tools, corerl-correction]")
    told = capsys.readouterr().err
    usual = train("b")
    assert all("rollout_corr/kl" in record for record in numbers(usual)[1:])  # the first is an evaluation
    assert numbers(alone) == [
        {name: value for name, value in record.items() if not name.startswith("rollout_corr/")}
        for record in numbers(usual)
    ]
    assert "no plugin writes the sample rollouts (pip install corerl-tools)" in told
    assert not (alone / "rollouts").exists() and any((usual / "rollouts").iterdir())
