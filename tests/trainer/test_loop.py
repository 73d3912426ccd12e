"""One step of training, call by call, with workers that are made up and numbers by hand."""

from collections import Counter
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from corerl.batch.rollouts import Episode
from corerl.config.schema import ModelConfig, RolloutCorrectionConfig, TrainConfig
from corerl.data.prompts import Prompt
from corerl.errors import EngineDeadError, NonFiniteError, RunError
from corerl.registry.advantage_estimators import Advantages
from corerl.registry.losses import Mean
from corerl.registry.reward_managers import RewardResult
from corerl.registry.rollout_backends import SamplingParams
from corerl.registry.training_strategies import TokenOutputs
from corerl.seeding import Seeds
from corerl.telemetry.throughput import ModelShape
from corerl.telemetry.timers import Timers
from corerl.trainer.loop import Trainer
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.pipeline import Collected
from corerl.trainer.scoring import Notices
from corerl.trainer.stopping import Stopping


class Worker:
    """A model that says -1, -2, -3, … of the batches that it is asked about; its updates count from 1."""

    def __init__(self, name, calls):
        self.name, self.calls, self.asked, self.updated, self.says = name, calls, [], [], {}

    def forward(self, batch, wanted):
        self.calls.append(f"{self.name}.forward")
        self.asked.append((sorted(batch.tensors()), list(wanted)))
        shape = batch.response_mask.shape
        return TokenOutputs(**{name: torch.full(shape, -float(len(self.asked))) for name in wanted})

    def update(self, mini_batch):
        self.calls.append(f"{self.name}.update")
        self.updated.append(mini_batch)
        number = len(self.updated)
        if number in self.says:
            raise self.says[number]
        return {"loss": Mean(float(number), 1.0)}

    def peak_memory(self):
        return {"perf/max_memory_allocated_gb": 1.5}


class Devices:
    def __init__(self, calls):
        self.calls, self.fails = calls, ""

    def __getattr__(self, name):
        def move():
            self.calls.append(name)
            if self.fails == name:
                raise EngineDeadError(f"ended in {name}")

        return move


class Parts(SimpleNamespace):
    needs_ref_log_probs = True
    kl_loss = None

    def __init__(self, **facts):
        facts = {"needs_groups": False, "needs_sum_pi_squared": False, **facts}
        super().__init__(adv_estimator=SimpleNamespace(entry=SimpleNamespace(**facts)))


@pytest.fixture
def trainer(tmp_path):
    """``trainer(critic=False, reference=False, section__key=value, …)`` at step 1 of 10."""

    def make(critic=False, reference=False, parts=None, **keys):
        config = TrainConfig(ModelConfig("x"))
        config.actor.ppo_mini_batch_size, config.data.max_response_length = 1, 8
        for key, value in keys.items():
            section, _, name = key.partition("__")
            setattr(getattr(config, section), name, value)
        calls = []

        def send_weights(version, *, verify):
            calls.append(f"send_weights({version}, verify={verify})")

        def estimate(inputs):
            calls.append("estimate")
            return Advantages(inputs.rewards.clone(), 2 * inputs.rewards)

        made = Trainer(
            run=SimpleNamespace(config=config, parts=parts or Parts(), folder=tmp_path),
            engines=SimpleNamespace(send_weights=send_weights, restarts=2, actor_in_use=nullcontext()),
            actor=Worker("actor", calls),
            critic=Worker("critic", calls) if critic else None,
            reference=Worker("reference", calls) if reference else None,
            collector=SimpleNamespace(),
            pipeline=SimpleNamespace(),
            devices=Devices(calls),
            estimate_advantages=estimate,
            select_tokens=None,
            kl_penalty=None,
            vocabulary_reference=None,
            val_prompts=[],
            notices=Notices({}),
            nonfinite=NonFiniteGuard(tmp_path / "nonfinite", skip=True),
            log=SimpleNamespace(),
            correction=RolloutCorrectionConfig(rollout_is="none"),
            checkpoints=None,
            seeds=Seeds(0),
            validation_sampling=SamplingParams(8),
            shape=ModelShape(1, 1, 1),
            total_steps=10,
            stopping=Stopping(),
            step=1,
        )
        made.calls = calls
        return made

    return make


@pytest.fixture
def batch(scored_rollouts):
    """``batch(scores, …)``: responses and their experience, with log-probs of -1 and advantages of 1."""

    def make(scores=(1.0, 0.0), **options):
        scored = scored_rollouts(list(scores), **options)
        experience = scored.experience()
        experience.old_log_probs = torch.full(experience.response_mask.shape, -1.0)
        experience.advantages = experience.returns = torch.ones(experience.response_mask.shape)
        return scored, experience

    return make


TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


def test_a_step_collects_computes_updates_and_hands_the_weights_over(trainer, batch):
    made = trainer(critic=True, reference=True, trainer__log_rollouts_freq=-1)
    scored, _ = batch()
    made.pipeline.batch = lambda step: Collected(
        scored, {"training/epoch": 0.0}, {"gen": 2.0}, {"position": step}, {"reward": 3.0}
    )
    metrics = made.train_step()
    assert made.calls == [
        "to_training",
        *("actor.forward", "reference.forward", "critic.forward"),
        "estimate",
        *["critic.update"] * 2,
        *["actor.update"] * 2,
        *("to_weights", "send_weights(1, verify=False)", "to_generation"),
    ]
    assert made.sampler_state == {"position": 1}
    assert made.is_changed
    given = {
        "training/epoch": 0.0,
        "training/global_step": 1.0,
        "training/nonfinite_samples": 0.0,
        "rollout/restarts": 2.0,
        "critic/loss": 1.5,
        "critic/skipped_updates": 0.0,
        "actor/loss": 1.5,
        "actor/skipped_updates": 0.0,
        "actor/entropy": -1.0,
        "critic/score/mean": 0.5,
        "critic/returns/max": 2.0,
        "timing_s/gen": 2.0,
        "timing_background_s/reward": 3.0,
        "perf/total_num_tokens": 8.0,
    }
    assert {name: metrics.get(name) for name in given} == given
    parts = {name.removeprefix("timing_s/") for name in metrics if name.startswith("timing_s/")}
    assert parts == {
        *("gen", "batch", "handover", "old_log_prob", "ref", "values", "adv", "metrics"),
        *("update_critic", "update_actor", "update_weights", "step"),
    }
    assert "perf/max_memory_allocated_gb" not in metrics
    updated = made.actor.updated[0]
    assert updated.old_log_probs.tolist() == updated.ref_log_probs.tolist() == [[-1.0, -1.0]]
    assert updated.values.tolist() == [[-1.0, -1.0]]
    assert updated.advantages.tolist() == [[0.0, 1.0]]


def test_on_a_gpu_its_memory_is_a_metric(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    made.shape = ModelShape(1, 1, 1, device_name="NVIDIA H100")
    scored, _ = batch()
    made.pipeline.batch = lambda step: Collected(scored, {}, {}, {})
    assert made.train_step()["perf/max_memory_allocated_gb"] == 1.5


def test_samples_that_are_not_finite_before_and_after_the_advantages_are_left_out_and_counted(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    scored, _ = batch([1.0, 2.0, 3.0])
    forward, nan = made.actor.forward, float("nan")

    def first_row_is_nan(asked, wanted):
        outputs = forward(asked, wanted)
        outputs.log_probs[0, 0] = nan
        return outputs

    def second_row_is_nan(inputs):
        advantages = inputs.rewards.clone()
        advantages[1] = nan
        return Advantages(advantages, advantages.clone())

    made.actor.forward, made.estimate_advantages = first_row_is_nan, second_row_is_nan
    made.pipeline.batch = lambda step: Collected(scored, {}, {}, {})
    assert made.train_step()["training/nonfinite_samples"] == 2.0
    [updated] = made.actor.updated
    assert updated.rewards.tolist() == [[0.0, 3.0]]


def test_the_kl_penalty_changes_the_rewards_before_the_advantages_are_estimated(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    scored, _ = batch()

    def subtract(experience):
        made.calls.append("subtract")
        experience.rewards = experience.rewards - 0.25
        return {"actor/reward_kl_penalty": 0.25}

    made.kl_penalty = SimpleNamespace(subtract=subtract)
    made.pipeline.batch = lambda step: Collected(scored, {}, {}, {})
    assert made.train_step()["actor/reward_kl_penalty"] == 0.25
    assert made.calls.index("subtract") < made.calls.index("estimate")
    assert made.actor.updated[0].advantages.tolist() == [[-0.25, 0.75]]


def test_an_engine_that_has_ended_for_good_leaves_a_step_that_is_done(trainer):
    for moment in ("to_weights", "to_generation"):
        made = trainer()
        made.devices.fails = moment
        made.hand_over(Timers())
        assert str(made.failure) == f"ended in {moment}"
        assert ("send_weights(1, verify=False)" in made.calls) is (moment == "to_generation")


@pytest.mark.parametrize(("frequency", "verified"), [(-1, []), (3, [3, 6, 9]), (1, list(range(1, 11)))])
def test_weights_are_verified_every_so_many_steps_and_not_because_a_step_is_the_last(trainer, frequency, verified):
    made = trainer(rollout__verify_weights_freq=frequency)
    for made.step in range(1, 11):
        made.hand_over(Timers())
    sent = [call for call in made.calls if call.startswith("send")]
    assert [number for number, call in enumerate(sent, 1) if call.endswith("verify=True)")] == verified


def test_the_models_are_asked_for_what_is_needed_with_the_tokens_alone(trainer, batch):
    made = trainer(critic=True, reference=True, parts=Parts(needs_sum_pi_squared=True))
    _, experience = batch()
    metrics = made.compute(experience, Timers())
    assert made.actor.asked == [(TOKENS, ["log_probs", "entropy", "sum_pi_squared"])]
    assert made.reference.asked == [(TOKENS, ["log_probs"])]
    assert made.critic.asked == [(TOKENS, ["values"])]
    assert metrics == {"actor/entropy": -1.0}
    assert experience.sum_pi_squared is not None


def test_nothing_is_asked_of_a_reference_whose_log_probs_of_the_samples_nobody_needs(trainer, batch):
    parts = Parts()
    parts.needs_ref_log_probs = False
    made = trainer(reference=True, parts=parts)
    _, experience = batch()
    made.compute(experience, Timers())
    assert made.reference.asked == []
    assert made.actor.asked == [(TOKENS, ["log_probs", "entropy"])]


def test_with_bypass_mode_the_engines_log_probs_are_the_old_ones(trainer, batch):
    made = trainer()
    made.run.config.algorithm.rollout_correction.bypass_mode = True
    _, experience = batch()
    assert made.compute(experience, Timers()) == {}
    assert made.actor.asked == []
    assert experience.old_log_probs.tolist() == [[-0.5, -0.5]] * 2


def test_an_estimator_gets_the_scores_parts_and_values_of_trained_tokens_alone(trainer, batch):
    made = trainer()
    scored, experience = batch([1.0, None])
    scored.results[0] = RewardResult(1.0, {"format": 0.5})
    experience.values = torch.full((2, 2), 9.0)
    experience.sum_pi_squared = torch.full((2, 2), 0.25)
    experience.greedy_scores = torch.tensor([3.0, 4.0])
    inputs = made.advantage_inputs(experience, scored)
    assert inputs.values.tolist() == [[9.0, 9.0], [0.0, 0.0]]
    assert inputs.rewards.tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert inputs.response_mask is experience.response_mask
    assert inputs.log_probs is experience.old_log_probs
    assert inputs.sum_pi_squared is experience.sum_pi_squared
    assert inputs.greedy_scores is experience.greedy_scores
    assert inputs.group_ids.tolist() == [0, 1]
    assert inputs.components["format"].tolist() == [0.5, 0.0]


def test_each_mini_batch_is_of_whole_prompts_and_has_the_weights_of_its_own_tokens(trainer, batch):
    """Rows of 1, 2, 3 and 4 tokens, two to a prompt; the whole comes twice."""
    made = trainer()
    _, experience = batch([1.0] * 4, n=2, lengths=[1, 2, 3, 4])
    cut = list(made.mini_batches(experience, 1, 2, "token-mean"))
    assert [rows.tolist() for rows, _ in cut] == [[0, 1], [2, 3]] * 2
    for rows, mini_batch in cut:
        tokens = sum(row + 1 for row in rows.tolist())
        assert mini_batch.loss_weights[mini_batch.response_mask].tolist() == pytest.approx([1 / tokens] * tokens)


def test_a_mini_batch_without_a_trained_token_is_no_update(trainer, batch):
    made = trainer()
    _, experience = batch([1.0, None, 2.0])
    assert [rows.tolist() for rows, _ in made.mini_batches(experience, 1, 1, "token-mean")] == [[0], [2]]


@pytest.mark.parametrize(("factor", "weight"), [(None, 1 / 8), (5, 1 / 5)])
def test_the_constant_length_is_the_longest_response_unless_it_is_given(trainer, batch, factor, weight):
    made = trainer(actor__loss_scale_factor=factor)
    _, experience = batch([1.0])
    [(_, mini_batch)] = made.mini_batches(experience, 1, 1, "seq-mean-token-sum-norm")
    assert mini_batch.loss_weights.flatten().tolist() == pytest.approx([weight, weight])


def test_the_critic_has_mini_batches_epochs_and_an_aggregation_of_its_own_or_else_the_actors(trainer, batch):
    made = trainer(critic=True, actor__ppo_epochs=2)
    scored, experience = batch([1.0] * 4)
    made.update(experience, scored, Timers())
    assert Counter(made.calls) == {"critic.update": 8, "actor.update": 8}
    made = trainer(critic=True, critic__ppo_epochs=3, critic__ppo_mini_batch_size=2, critic__loss_agg_mode="token-sum")
    made.update(experience, scored, Timers())
    assert Counter(made.calls) == {"critic.update": 6, "actor.update": 4}
    assert made.calls[:6] == ["critic.update"] * 6
    assert made.critic.updated[0].loss_weights.tolist() == [[1.0, 1.0]] * 2
    assert made.actor.updated[0].loss_weights.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("step", "updates"), [(1, 0), (2, 0), (3, 2)])
def test_the_policy_is_not_updated_in_the_critics_warm_up(trainer, batch, step, updates):
    made = trainer(critic=True, trainer__critic_warmup=2)
    made.step = step
    scored, experience = batch()
    metrics = made.update(experience, scored, Timers())
    assert Counter(made.calls)["actor.update"] == updates
    assert ("actor/loss" in metrics) is bool(updates)
    assert metrics["critic/loss"] == 1.5
    assert made.is_changed


def test_the_coefficient_of_the_kl_loss_is_told_where_there_is_one(trainer, batch):
    made = trainer(actor__kl_loss_coef=0.125)
    scored, experience = batch([1.0])
    assert "actor/kl_coef" not in made.update(experience, scored, Timers())
    made.actor.update = lambda mini_batch: {"kl_loss": Mean(2.0, 1.0)}
    assert made.update(experience, scored, Timers())["actor/kl_coef"] == 0.125


def test_a_step_without_a_score_is_told(trainer, batch, capsys):
    made = trainer()
    scored, experience = batch([None, None])
    assert made.update(experience, scored, Timers()) == {}
    assert capsys.readouterr().err == "step 1: no response has a score, so the weights stay as they are\n"
    scored, experience = batch([1.0, None])
    made.update(experience, scored, Timers())
    assert capsys.readouterr().err == ""


def test_an_update_that_is_not_finite_is_left_out_counted_and_its_samples_are_named(trainer, batch, capsys):
    """Of the second mini-batch, rows 2 and 3 of the batch, its row 1 is at fault; of the third nobody knows."""
    made = trainer()
    scored, experience = batch([1.0] * 6, n=2)
    made.actor.says = {2: NonFiniteError("loss is nan", [1]), 3: NonFiniteError("norm is inf")}
    metrics = made.update(experience, scored, Timers())
    updates = {name: value for name, value in metrics.items() if name.startswith("actor/")}
    assert updates == {"actor/loss": 1.0, "actor/skipped_updates": pytest.approx(2 / 3)}
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1: loss is nan; 1 samples (response 3 to prompt 1 of 'acme/sums') are saved in ")
    assert second.startswith("step 1: norm is inf; 2 samples (response 4 to prompt 2 of 'acme/sums', response 5 to ")


def test_rollout_correction_weights_the_tokens_and_says_how_many_it_took(trainer, batch):
    """log pi_old - log pi_rollout is 0.5, 0, -0.5 and -3 at four tokens; the ratio of the last, 0.05, is rejected."""
    made = trainer()
    _, experience = batch()
    experience.old_log_probs = torch.tensor([[0.0, -0.5], [-1.0, -3.5]])
    made.correction = RolloutCorrectionConfig(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=2.0)
    metrics = made.correct_rollouts(experience, 0)
    assert metrics["rollout_corr/rejected_fraction"] == 0.25
    assert metrics["rollout_corr/log_prob_abs_diff"] == pytest.approx(1.0)
    assert experience.response_mask.tolist() == [[True, True], [True, False]]
    ratios = [2.718281828**0.5, 1.0, 2.718281828**-0.5, 0.0]
    assert experience.rollout_weights.flatten().tolist() == pytest.approx(ratios)


def test_without_weights_or_rejection_nothing_is_rejected_and_the_difference_is_told(trainer, batch):
    made = trainer()
    _, experience = batch()
    metrics = made.correct_rollouts(experience, 0)
    assert "rollout_corr/rejected_fraction" not in metrics
    assert metrics["rollout_corr/log_prob_abs_diff"] == pytest.approx(0.5)
    assert experience.rollout_weights is None


def test_an_engine_that_disagrees_ends_the_run_unless_its_responses_are_stale(trainer, batch):
    made = trainer()
    _, experience = batch()
    made.correction = RolloutCorrectionConfig(rollout_is="none", max_log_prob_diff=0.25)
    assert made.correct_rollouts(experience, 1)
    with pytest.raises(RunError, match=r"differ by 0\.5 a token"):
        made.correct_rollouts(experience, 0)


@pytest.mark.parametrize("why", ["bypass", "no old", "no rollout"])
def test_nothing_is_corrected_where_there_are_not_two_policies(trainer, batch, why):
    made = trainer()
    _, experience = batch()
    made.correction = RolloutCorrectionConfig(rollout_is="token", bypass_mode=why == "bypass")
    if why == "no old":
        experience.old_log_probs = None
    if why == "no rollout":
        experience.rollout_log_probs = None
    assert made.correct_rollouts(experience, 0) == {}
    assert experience.rollout_weights is None


def test_staleness_is_the_largest_of_the_batch(trainer, batch):
    made = trainer()
    made.step = 3
    made.correction = RolloutCorrectionConfig(rollout_is="none", max_log_prob_diff=0.25)
    scored, experience = batch([1.0, 0.0], version=2)
    object.__setattr__(scored.rollouts.completions[0], "weight_version", 1)
    made.update(experience, scored, Timers())  # a stale response is there: no error
    object.__setattr__(scored.rollouts.completions[0], "weight_version", 2)
    with pytest.raises(RunError, match="differ by"):
        made.update(experience, scored, Timers())


def test_tokens_are_selected_with_the_policy_as_it_is_before_their_own_update(trainer, batch):
    made = trainer(actor__ppo_epochs=2)
    given = []

    def select(inputs, uniforms):
        given.append((inputs.log_probs, inputs.old_log_probs, uniforms))
        return inputs.log_probs < -2.5

    made.select_tokens = select
    scored, experience = batch([1.0, 1.0], lengths=[2, 3])
    made.update(experience, scored, Timers())
    assert made.calls == ["actor.forward", "actor.update"] * 4
    assert made.actor.asked == [(TOKENS, ["log_probs"])] * 4
    assert [float(log_probs[0, 0]) for log_probs, *_ in given] == [-1.0, -2.0, -3.0, -4.0]
    assert {float(old[0, 0]) for _, old, _ in given} == {-1.0}
    assert [bool(updated.selected.all()) for updated in made.actor.updated] == [False, False, True, True]
    for number, (log_probs, _, uniforms) in enumerate(given):
        expected = Seeds(0).uniforms(1, number, tuple(log_probs.shape))
        assert uniforms.tolist() == expected.tolist()
    assert len({float(uniforms[0, 0]) for *_, uniforms in given}) == 4


@pytest.mark.parametrize("kl_loss", [True, False])
def test_log_probs_of_the_vocabulary_are_added_to_each_mini_batch_for_a_kl_loss_alone(trainer, batch, kl_loss):
    made = trainer()
    added = []
    made.vocabulary_reference = SimpleNamespace(add=added.append)
    made.run.parts.kl_loss = "full" if kl_loss else None
    scored, experience = batch([1.0, 1.0])
    made.update(experience, scored, Timers())
    assert [len(mini_batch) for mini_batch in added] == ([1, 1] if kl_loss else [])


def validating(made, scored_rollouts, prompts=5):
    """Generates one response to each prompt; its score is the prompt's number, and the last has none."""
    made.val_prompts = [Prompt(index, (1,), [], "acme/sums", "", {}) for index in range(prompts)]
    asked, shown = [], []

    def generate(part, seeds, *draws):
        asked.append(([prompt.index for prompt in part], list(seeds), draws))
        scores = [float(prompt.index) if prompt.index < prompts - 1 else None for prompt in part]
        scored = scored_rollouts(scores)
        rollouts = scored.rollouts
        rollouts.prompts[:] = part
        return [SimpleNamespace(rollouts=lambda: rollouts, results=scored.results)]

    made.collector = SimpleNamespace(generate=generate, score=lambda rollouts, batch: batch.results)
    made.log.write_samples = lambda step, columns, rows: shown.append((step, len(rows)))
    return asked, shown


@pytest.mark.parametrize(("size", "parts"), [(2, [[0, 1], [2, 3], [4]]), (None, [[0, 1, 2, 3, 4]])])
def test_an_evaluation_asks_for_all_prompts_in_parts_with_the_seeds_of_every_evaluation(
    trainer, scored_rollouts, capsys, size, parts
):
    made = trainer(data__val_batch_size=size, trainer__log_val_generations=3)
    asked, shown = validating(made, scored_rollouts)
    metrics = made.evaluate()
    assert [part for part, *_ in asked] == parts
    assert [seed for _, seeds, _ in asked for seed in seeds] == Seeds(0).validation_requests(5)
    assert [draws for *_, draws in asked] == [((made.validation_sampling, f"val-{part[0]}"),) for part in parts]
    assert metrics["val-core/acme/sums/reward/mean@1"] == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert metrics["val-aux/error_ratio"] == pytest.approx(0.2)
    assert metrics["timing_s/testing"] > 0
    assert shown == [(1, 3)]
    assert capsys.readouterr().err == (
        "step 1, evaluation: 1 of 5 responses could not be scored and are left out; 1 times: boom\n"
    )
    assert made.calls == []


def test_episodes_of_an_evaluation_have_metrics_of_their_own(trainer, scored_rollouts):
    made = trainer()
    validating(made, scored_rollouts, prompts=2)
    generate = made.collector.generate

    def episodes(part, seeds, *draws):
        [batch] = generate(part, seeds, *draws)
        rollouts = batch.rollouts()
        object.__setattr__(rollouts, "episodes", [Episode([True, True], turns=turns) for turns in (1, 3)])
        return [batch]

    made.collector.generate = episodes
    metrics = made.evaluate()
    assert metrics["val-aux/env/turns/mean"] == 2.0


@pytest.mark.parametrize(("frequency", "steps"), [(-1, []), (3, [3, 6, 9, 10]), (0, [])])
def test_sample_rollouts_are_written_every_so_many_steps_and_in_the_last(
    trainer, batch, tmp_path, tiny_tokenizer_dir, frequency, steps
):
    from corerl.data.tokenizer import load_tokenizer

    made = trainer(trainer__log_rollouts_freq=frequency, trainer__log_rollouts_tokens=1)
    made.collector.tokenizer = load_tokenizer(ModelConfig(str(tiny_tokenizer_dir)))
    scored, experience = batch()
    for made.step in range(1, 11):
        made.tell(experience, scored)
    files = sorted((tmp_path / "rollouts").glob("*"))
    assert [file.name for file in files] == [f"step_{step:06d}.parquet" for step in steps]
    for file in files:
        table = pq.read_table(file).to_pylist()
        assert [row["score"] for row in table] == [1.0, 0.0]
        assert [row["advantages"] for row in table] == [[1.0, 1.0], None]


def test_rollouts_that_cannot_be_written_are_told_and_the_run_goes_on(trainer, batch, tmp_path, capsys):
    made = trainer(trainer__log_rollouts_freq=1, trainer__log_rollouts_tokens=0)
    (tmp_path / "rollouts").write_text("a file")
    made.collector.tokenizer = SimpleNamespace(
        stop_token_ids=(9,), tokenizer=SimpleNamespace(batch_decode=lambda rows, **_: [""] * len(rows))
    )
    scored, experience = batch()
    made.tell(experience, scored)
    assert "step 1: the sample rollouts could not be written: " in capsys.readouterr().err


@pytest.mark.parametrize("needs_groups", [True, False])
def test_notices_are_about_errors_equal_scores_and_lone_responses_where_groups_are_compared(
    trainer, batch, capsys, needs_groups
):
    made = trainer(parts=Parts(needs_groups=needs_groups), trainer__log_rollouts_freq=-1)
    scored, experience = batch([1.0, None, 0.0, 0.5], n=2)
    made.tell(experience, scored)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 1: 1 of 4 responses could not be scored")
    assert ("step 1: 1 prompts have one response with a score: its advantage is 0" in lines) is needs_groups
    scored, experience = batch([0.5, 0.5], n=2)
    made.tell(experience, scored)
    assert capsys.readouterr().err.startswith("step 1: every reward in this step is 0.5\n")


def test_something_is_due_every_so_many_steps_and_after_the_last(trainer):
    made = trainer()

    def due(ask):
        found = []
        for made.step in range(1, 11):
            found += [made.step] if ask() else []
        return found

    assert due(lambda: made.is_due(4)) == [4, 8, 10]
    assert due(lambda: made.is_due(-1)) == due(lambda: made.is_due(0)) == [10]
    assert due(lambda: made.is_due_by(4)) == [4, 8]
    assert due(lambda: made.is_due_by(-1)) == due(lambda: made.is_due_by(0)) == []


def test_the_policys_workers_are_held_from_the_batch_to_the_end_of_the_step_and_a_step_may_be_abandoned_until_then(
    trainer, batch
):
    made = trainer(trainer__log_rollouts_freq=-1)
    scored, _ = batch()

    @contextmanager
    def held():
        made.calls.append("held")
        yield
        made.calls.append("released")

    made.engines.actor_in_use = held()
    abandonable = {}

    def note(name, function):
        def call(*arguments, **options):
            abandonable[name] = made.stopping._abandonable
            return function(*arguments, **options)

        return call

    made.pipeline.batch = note("batch", lambda step: Collected(scored, {}, {}, {}))
    made.actor.forward = note("forward", made.actor.forward)
    made.actor.update = note("update", made.actor.update)
    made.estimate_advantages = note("estimate", made.estimate_advantages)
    made.train_step()
    assert abandonable == {"batch": True, "forward": True, "estimate": False, "update": False}
    assert (made.calls[0], made.calls[-1]) == ("held", "released")
