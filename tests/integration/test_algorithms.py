"""What algorithms need of the loop: a critic, a greedy baseline, filters, corrections, whole vocabularies, presets."""

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

REWARD = """
def score(response, ground_truth, data_source, extra_info):
    return {"score": float(len(response) % 2), "short": float(len(response) < 3)}

def same(response, ground_truth, data_source, extra_info):
    return 1.0
"""

PARTS = """
import dataclasses

import torch
from corerl_hf.backend import HfBackend
from corerl.contracts.policy_losses import LossOutput
from corerl.contracts.advantage_estimators import Advantages

def nan_for_long_responses(inputs):
    long = inputs.response_mask.sum(1, keepdim=True) >= 6
    return LossOutput(torch.where(long, torch.nan, -inputs.advantages) * inputs.log_probs)

class MinusInfinityBackend(HfBackend):
    async def generate(self, requests):
        outputs = await super().generate(requests)
        spoilt = outputs[1][0]
        numbers = (-float("inf"), *spoilt.log_probs[1:])
        outputs[1][0] = dataclasses.replace(spoilt, log_probs=numbers)
        return outputs

def nan_advantage(inputs):
    advantages = inputs.rewards.clone()
    advantages[3] = torch.nan
    return Advantages(advantages, advantages)

def weighted(inputs):
    if inputs.rollout_weights is None:
        raise RuntimeError("there are no rollout weights")
    assert (inputs.rollout_weights[inputs.response_mask] > 0).all()
    return Advantages(inputs.rewards, inputs.rewards)
"""

TIMINGS = ("timing", "perf/")


@pytest.fixture
def train(material, tmp_path, capsys):
    """Train with overrides; returns (exit code, the run's folder, what was printed on standard error)."""
    pytest.importorskip("corerl_ppo")
    pytest.importorskip("corerl_dapo")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], train_batch_size: 8, max_prompt_length: 64,
               max_response_length: 6}}
        actor: {{device: cpu, optim: {{lr: 1e-2}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 4}}
        reward: {{scorer: {tmp_path}/parts.py:score, manager: naive}}
        trainer: {{total_training_steps: 2}}
        """
    )
    (tmp_path / "parts.py").write_text(REWARD + PARTS)

    def start(name, *overrides):
        capsys.readouterr()
        code = run(["train", str(config), f"trainer.output_dir={tmp_path / name}", *overrides])
        folders = list((tmp_path / name).glob("default/*"))
        return code, folders[0] if folders else None, capsys.readouterr().err

    return start


def records(folder: Path):
    return [
        {name: value for name, value in record.items() if not name.startswith(TIMINGS)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def weights(folder: Path, step: int, role: str = "actor"):
    return load_file(folder / "checkpoints" / f"global_step_{step}" / role / "weights.safetensors")


def differs(left, right):
    return any(not torch.equal(left[name], right[name]) for name in left)


PPO = ("algorithm.adv_estimator={name: gae, lam: 0.95}", "critic.optim.lr=1e-2")


def test_ppo_trains_a_critic_and_warms_it_up(train):
    code, folder, _ = train("a", *PPO, "trainer.critic_warmup=1", "trainer.save_freq=1", "critic.ppo_epochs=2")
    assert code == 0
    first, second = records(folder)
    assert "actor/pg_loss" not in first and "actor/pg_loss" in second
    for name in ("vf_loss", "vf_clipfrac", "vf_explained_var", "grad_norm", "lr", "values/mean", "vpred_mean"):
        assert math.isfinite(first[f"critic/{name}"])
    start = weights(folder, 1)
    assert differs(start, weights(folder, 2))
    assert differs(weights(folder, 1, "critic"), weights(folder, 2, "critic"))
    assert "score.weight" in weights(folder, 1, "critic") and "score.weight" not in start


def test_ppo_with_an_adaptive_penalty_resumes_bit_for_bit(train):
    penalty = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type={name: adaptive, horizon: 50}")
    options = (*PPO, *penalty, "trainer.total_training_steps=4", "trainer.save_freq=2")
    code, folder, _ = train("a", *options)
    assert code == 0
    whole = records(folder)
    coefficients = [record["actor/reward_kl_penalty_coeff"] for record in whole]
    assert len(set(coefficients)) == 4
    expected = coefficients[0] * (1 + min(max(whole[0]["actor/reward_kl_penalty"] / 0.1 - 1, -0.2), 0.2) * 32 / 50)
    assert coefficients[1] == pytest.approx(expected, rel=1e-6)
    final = {role: weights(folder, 4, role) for role in ("actor", "critic")}
    code, _, _ = train("a", *options, f"trainer.resume_mode={folder}/checkpoints/global_step_2")
    assert code == 0
    for now, before in zip(records(folder), whole, strict=True):
        assert {name: (value, before[name]) for name, value in now.items() if value != before[name]} == {}
    assert not any(differs(final[role], weights(folder, 4, role)) for role in final)


def test_remax_scores_a_greedy_response_to_every_prompt(train):
    code, folder, err = train("a", "algorithm.adv_estimator=remax", "rollout.n=1")
    assert code == 0, err
    advantages = [record["critic/advantages/max"] for record in records(folder)]
    assert all(value in (0.0, 1.0) for value in advantages)


def test_dynamic_sampling_fills_the_batch_with_groups_that_differ(train):
    code, folder, err = train("a", "preset=dapo", "reward.manager=dapo", "data.gen_batch_size=4", "rollout.n=2")
    assert code == 0, err
    for record in records(folder):
        assert record["reward/groups_without_spread"] == 0
        assert record["training/num_gen_batches"] > 2
    plugins = {part["part"]: part["distribution"] for part in json.loads((folder / "plugins.json").read_text())}
    assert plugins["batch_filter"] == plugins["reward_manager"] == "corerl-dapo"


def test_dynamic_sampling_that_finds_nothing_stops_with_the_arithmetic(train, tmp_path):
    filtered = "algorithm.filter_groups={enable: true, max_num_gen_batches: 2}"
    code, _, errors = train("a", filtered, f"reward.scorer={tmp_path}/parts.py:same")
    assert code == 1
    said = "step 1: algorithm.filter_groups dropped more than 8 prompts, and a step of 8 generates at most 16 ("
    assert said in errors


def test_a_filter_by_an_unknown_component_names_the_known_ones(train):
    code, _, errors = train("a", "algorithm.filter_groups={enable: true, metric: long}")
    assert code == 1
    assert "metric 'long'" in errors and "score, short" in errors


def test_rollout_correction_weighs_rejects_and_reports(train):
    level = "algorithm.rollout_correction={rollout_is: token, rollout_rs: seq_mean_k1, rollout_rs_threshold: 1.0000001}"
    code, folder, _ = train("a", level)
    assert code == 0
    for record in records(folder):
        assert record["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-3)
        assert abs(record["rollout_corr/kl"]) < 1e-4
        assert 0 < record["rollout_corr/rejected_fraction"] <= 1


def test_an_engine_with_weights_in_fp8_is_measured_and_corrected(train):
    code, folder, errors = train(
        "a", "rollout.options.quantization=fp8", "algorithm.rollout_correction.rollout_is=token"
    )
    assert code == 0, errors
    for record in records(folder):
        assert record["rollout_corr/log_prob_abs_diff"] > 1e-4 and 1e-8 < record["rollout_corr/k3_kl"] < 0.1
        assert record["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("options", [[], ["algorithm.rollout_correction.rollout_is=token", "rollout.record=BOTH"]])
def test_score_centering_adds_nothing_if_engine_and_trainer_agree(train, options):
    record, both = "rollout.record=[top_log_probs]", "[kept_tokens, top_log_probs]"
    options = [each.replace("BOTH", both) for each in options] + ["rollout.top_p=0.9"] * bool(options)
    centering = ["algorithm.rollout_correction.score_centering=true", "rollout.top_log_probs=5", record]
    code, folder, errors = train("a", *centering, *options, "actor.ppo_mini_batch_size=8")
    assert code == 0, errors
    for record in records(folder):
        assert abs(record["actor/score_centering"]) < 1e-4 and record["actor/grad_norm"] > 0.01


def test_an_estimator_is_given_the_weights_of_rollout_correction(train, tmp_path):
    estimator = f"algorithm.adv_estimator={tmp_path}/parts.py:weighted"
    code, _, errors = train("a", estimator, "algorithm.rollout_correction.rollout_is=token")
    assert code == 0, errors
    code, _, errors = train("b", estimator)
    assert code == 1 and "there are no rollout weights" in errors


def test_bypass_takes_the_rollout_log_probs(train):
    code, folder, _ = train("a", "algorithm.rollout_correction.bypass_mode=true")
    assert code == 0
    assert all("actor/entropy" not in record and "rollout_corr/kl" not in record for record in records(folder))


@pytest.mark.parametrize(
    "rules",
    ["rollout_is: sequence, rollout_is_batch_normalize: true", "rollout_rs: {seq_mean_k1: 1.0000001, seq_max_k2: 9}"],
    ids=["weights", "rejection"],
)
def test_bypass_corrects_each_mini_batch_by_the_policy_before_its_update(train, rules):
    correction = f"algorithm.rollout_correction={{bypass_mode: true, {rules}}}"
    code, folder, err = train("a", correction, "actor.optim.lr=1e-2", "actor.ppo_epochs=2")
    assert code == 0, err
    for record in records(folder):
        assert "actor/entropy" not in record
        assert record["rollout_corr/log_prob_abs_diff"] > 1e-4, "the second pass compares a policy that has moved"
        assert (record["rollout_corr/rejected_fraction"] > 0) == ("rollout_rs" in rules)
        if "rollout_is" in rules:
            assert record["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5), "the loss has no ratio of its own left"


@pytest.mark.parametrize(
    "options",
    [
        ("actor.use_kl_loss=true", "actor.kl_loss_type=full"),
        ("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full"),
    ],
    ids=["loss", "reward"],
)
def test_the_full_kl_runs_and_is_bounded_in_memory(train, options):
    code, folder, _ = train("a", *options, "actor.ppo_epochs=2")
    assert code == 0
    name = "actor/kl_loss" if "actor.use_kl_loss=true" in options else "actor/reward_kl_penalty"
    first, second = (record[name] for record in records(folder))
    assert 0 <= first < second
    code, _, errors = train("b", *options, "ref.max_vocabulary_log_probs_gb=1e-6")
    assert code == 1
    assert "more than ref.max_vocabulary_log_probs_gb = 1e-06" in errors


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_losses_that_choose_tokens_over_the_whole_mini_batch(train, loss):
    pytest.importorskip("corerl_grpo.losses.clip_cov")
    code, folder, _ = train("a", f"actor.policy_loss={loss}", "actor.ppo_epochs=2")
    assert code == 0
    assert all(math.isfinite(record["actor/pg_loss"]) for record in records(folder))


def test_a_preset_is_beneath_the_file_and_the_overrides(train):
    code, folder, _ = train(
        "a", "preset=dapo", "actor.policy_loss.clip_ratio_high=0.5", "algorithm.filter_groups.enable=false"
    )
    assert code == 0
    text = (folder / "config.yaml").read_text()
    assert "clip_ratio_high: 0.5" in text and "clip_ratio_low: 0.2" in text and "preset: dapo" in text


def test_an_unknown_preset_is_an_error(train):
    code, _, errors = train("a", "preset=dappo")
    assert code == 2
    assert "preset: unknown preset 'dappo' (did you mean 'dapo'?)" in errors


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_a_loss_that_is_not_finite_names_and_saves_its_samples(train, tmp_path, on_nonfinite):
    loss = f"actor.policy_loss={tmp_path}/parts.py:nan_for_long_responses"
    code, folder, errors = train("a", loss, f"trainer.on_nonfinite={on_nonfinite}", "trainer.save_freq=1")
    assert "step 1: loss nan" in errors and "samples (response " in errors and "nonfinite/step_000001" in errors
    saved = pq.read_table(folder / "nonfinite" / "step_000001" / "rollouts.parquet").to_pylist()
    assert saved and all(row["response_length"] >= 6 for row in saved)
    tensors = load_file(folder / "nonfinite" / "step_000001" / "experience.safetensors")
    assert len(tensors["input_ids"]) == len(saved)
    if on_nonfinite == "stop":
        assert code == 1 and "trainer.on_nonfinite=skip" in errors
        return
    assert code == 0
    assert [record["actor/skipped_updates"] for record in records(folder)] == [1, 1]
    names = {path.name for path in (folder / "nonfinite").iterdir()}
    assert names == {f"step_00000{step}{again}" for step in (1, 2) for again in ("", "-2")}


def test_an_estimator_that_gives_nan_is_caught_before_the_update(train, tmp_path):
    estimator = f"algorithm.adv_estimator={tmp_path}/parts.py:nan_advantage"
    code, _, errors = train("a", estimator)
    assert code == 1
    assert "step 1: not finite: advantages of 1 responses" in errors and "response 3 to prompt" in errors
    code, folder, _ = train("b", estimator, "trainer.on_nonfinite=skip")
    assert code == 0
    assert [record["training/nonfinite_samples"] for record in records(folder)] == [1, 1]


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_an_infinite_log_prob_is_caught_with_its_sample(train, tmp_path, on_nonfinite):
    backend = f"rollout.name={tmp_path}/parts.py:MinusInfinityBackend"
    code, folder, errors = train("a", backend, f"trainer.on_nonfinite={on_nonfinite}")
    assert "step 1: not finite: rollout_log_probs of 1 responses" in errors and "(response 4 to prompt" in errors
    assert code == (1 if on_nonfinite == "stop" else 0)
    if on_nonfinite == "skip":
        assert [record["training/nonfinite_samples"] for record in records(folder)] == [1, 1]


@pytest.mark.parametrize(
    ("override", "missing", "fact"),
    [
        ("algorithm.adv_estimator=corerl_ppo.gae:gae", "values", 'needs={"critic"}'),
        ("algorithm.adv_estimator=corerl_grpo.advantages.remax:remax", "greedy_scores", 'needs={"greedy_baseline"}'),
        ("actor.policy_loss=corerl_grpo.losses.opd:opd", "ref_log_probs", 'needs={"ref"}'),
        ("actor.policy_loss=corerl_grpo.losses.clip_cov:clip_cov", "selected", "select_tokens"),
    ],
)
def test_a_part_whose_needs_nobody_registered_is_one_line(train, override, missing, fact):
    code, _, errors = train("a", override)
    assert code == 1
    assert f"step 1: a part needs '{missing}', which this run does not compute" in errors and fact in errors
    assert "Traceback" not in errors


def test_equal_rewards_move_nothing_with_every_group_baseline(train, tmp_path):
    reward = f"reward.scorer={tmp_path}/parts.py:same"
    for estimator in ("grpo", "rloo", "reinforce_plus_plus_baseline", "opo"):
        code, folder, _ = train(estimator, reward, f"algorithm.adv_estimator={estimator}")
        assert code == 0
        for record in records(folder):
            assert record["reward/groups_without_spread"] == 1
            assert record["critic/advantages/max"] == record["critic/advantages/min"] == 0


def test_rows_without_an_advantage_are_skipped_and_the_weights_are_the_same_bit_for_bit(train):
    """With one row in a micro-batch nothing but rows of a gradient of 0 is left out; momentum and decay go on."""
    one_by_one = ("actor.use_dynamic_bsz=false", "actor.ppo_micro_batch_size_per_gpu=1", "actor.ppo_epochs=2")
    options = ("rollout.n=2", "trainer.total_training_steps=3", "trainer.save_freq=3", *one_by_one)
    code, folder, errors = train("a", *options)
    assert code == 0, errors
    code, skipping, errors = train("b", *options, "actor.zero_advantage=skip")
    assert code == 0, errors
    skipped = [record["actor/skipped_tokens"] for record in records(skipping)]
    assert all(0 < share < 1 for share in skipped)
    assert not differs(weights(folder, 3), weights(skipping, 3))
    moments = [torch.load(each / "checkpoints/global_step_3/actor/optimizer.pt") for each in (folder, skipping)]
    for mine, others in zip(*(each["optimizer"]["state"].values() for each in moments), strict=True):
        assert all(torch.equal(mine[name], others[name]) for name in mine)
    exact = ("grad_norm", "pg_loss", "lr")
    for before, after in zip(records(folder), records(skipping), strict=True):
        assert [before[f"actor/{name}"] for name in exact] == [after[f"actor/{name}"] for name in exact]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor.policy_loss=dro", "the policy loss 'dro'"),
        ("actor.use_kl_loss=true", "actor.use_kl_loss"),
        ("actor.entropy_coeff=0.1", "actor.entropy_coeff"),
    ],
)
def test_a_skip_that_would_change_the_gradient_is_refused(train, override, reason):
    code, _, errors = train("a", "actor.zero_advantage=skip", override)
    assert code == 2
    assert f"actor.zero_advantage: skip would change the gradient: {reason} gives" in errors
