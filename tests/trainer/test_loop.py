"""One step of training, call by call, with workers that are made up and numbers by hand."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.advantage_estimators import Advantages
from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.losses import values
from corerl.errors import RunError
from corerl.rollout.stream import StepGroups
from corerl_correction.corrector import ImportanceCorrector

TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


def test_a_step_collects_computes_updates_and_hands_the_weights_over(trainer, batch):
    made = trainer(critic=True, reference=True, trainer__log_rollouts_freq=-1)
    scored, _ = batch()
    made.stream.take = lambda step: StepGroups(scored, {"training/epoch": 0.0}, {"gen": 2.0}, {"reward": 3.0})
    metrics = made.train_step()
    assert made.calls == [
        "to_training",
        *("actor.forward", "reference.forward", "critic.forward"),
        "estimate",
        *["critic.update"] * 2,
        *["actor.update"] * 2,
        *("to_weights", "send_weights(1, verify=True)", "to_generation"),
    ]
    assert made.is_changed
    given = {
        "training/epoch": 0.0,
        "training/global_step": 1.0,
        "training/nonfinite_samples": 0.0,
        "rollout/restarts": 2.0,
        "rollout/workers_lost": 1.0,
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
    assert metrics["perf/max_memory_allocated_gb"] == 1.5
    updated = made.models.actor.updated[0]
    assert updated.old_log_probs.tolist() == updated.ref_log_probs.tolist() == [[-1.0, -1.0]]
    assert updated.values.tolist() == [[-1.0, -1.0]]
    assert updated.advantages.tolist() == [[0.0, 1.0]]


def test_a_checkpoint_is_copied_while_the_models_have_the_device_and_its_seconds_are_the_steps(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    made.stream.take = lambda step: StepGroups(batch()[0], {}, {}, {})
    metrics = made.train_step(lambda: made.calls.append("save"))
    where = made.calls.index("save")
    assert (made.calls[where - 1], made.calls[where + 1]) == ("actor.update", "to_weights")
    assert 0 <= metrics["timing_s/save"] <= metrics["timing_s/step"]


@pytest.mark.parametrize("oldest", [0, 1, 2])
def test_staleness_is_the_largest_of_the_batch(trainer, batch, oldest):
    """An engine that disagrees with the policy is no error as long as one response comes from older weights."""
    corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="none"), most=0.25)
    made = trainer(trainer__log_rollouts_freq=-1, corrector=corrector)
    made.step = 3
    scored, _ = batch([1.0, 0.0, 1.0], version=2)
    scored.rollouts.completions[1] = replace(scored.rollouts.completions[1], weight_version=oldest)
    made.stream.take = lambda step: StepGroups(scored, {}, {}, {})
    if oldest == 2:
        with pytest.raises(RunError, match=r"differ by 0\.5 a token"):
            made.train_step()
    else:
        assert made.train_step()["rollout_corr/log_prob_abs_diff"] == pytest.approx(0.5)


def test_samples_that_are_not_finite_before_and_after_the_advantages_are_left_out_and_counted(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    scored, _ = batch([1.0, 2.0, 3.0])
    forward, nan = made.models.actor.forward, float("nan")

    def first_row_is_nan(asked, wanted):
        outputs = forward(asked, wanted)
        outputs.log_probs[0, 0] = nan
        return outputs

    def second_row_is_nan(inputs):
        advantages = inputs.rewards.clone()
        advantages[1] = nan
        return Advantages(advantages, advantages.clone())

    made.models.actor.forward, made.batch.estimator = first_row_is_nan, second_row_is_nan
    made.stream.take = lambda step: StepGroups(scored, {}, {}, {})
    assert made.train_step()["training/nonfinite_samples"] == 2.0
    [updated] = made.models.actor.updated
    assert updated.rewards.tolist() == [[0.0, 3.0]]


def test_the_kl_penalty_changes_the_rewards_before_the_advantages_are_estimated(trainer, batch):
    made = trainer(trainer__log_rollouts_freq=-1)
    scored, _ = batch()

    def subtract(experience):
        made.calls.append("subtract")
        experience.rewards = experience.rewards - 0.25
        return {"actor/reward_kl_penalty": 0.25}

    made.kl_penalty = SimpleNamespace(subtract=subtract)
    made.stream.take = lambda step: StepGroups(scored, {}, {}, {})
    assert made.train_step()["actor/reward_kl_penalty"] == 0.25
    assert made.calls.index("subtract") < made.calls.index("estimate")
    assert made.models.actor.updated[0].advantages.tolist() == [[-0.25, 0.75]]


def test_an_engine_that_has_ended_for_good_leaves_a_step_that_is_done(trainer, batch):
    for moment in ("to_weights", "to_generation"):
        made = trainer()
        made.devices.fails = moment
        made.hand_over(made.at(*batch()))
        assert str(made.failure) == f"ended in {moment}"
        assert ("send_weights(1, verify=True)" in made.calls) is (moment == "to_generation")


@pytest.mark.parametrize(("frequency", "verified"), [(-1, []), (3, [3, 6, 9]), (1, list(range(1, 11)))])
def test_weights_are_verified_every_so_many_steps_and_not_because_a_step_is_the_last(
    trainer, batch, frequency, verified
):
    made = trainer(rollout__verify_weights_freq=frequency)
    for made.step in range(1, 11):
        made.hand_over(made.at(*batch()))
    sent = [call for call in made.calls if call.startswith("send")]
    assert [number for number, call in enumerate(sent, 1) if call.endswith("verify=True)")] == verified


def test_the_models_are_asked_for_what_is_needed_with_the_tokens_alone(trainer, batch):
    made = trainer(critic=True, reference=True, needs={"sum_pi_squared"})
    scored, experience = batch()
    step = made.at(scored, experience)
    made.ask_models(step)
    assert made.models.actor.asked == [(TOKENS, ["log_probs", "entropy", "sum_pi_squared"])]
    assert made.models.reference.asked == [(TOKENS, ["log_probs"])]
    assert made.models.critic.asked == [(TOKENS, ["values"])]
    assert values(made.batch.measured) == {"actor/entropy": -1.0}
    assert experience.sum_pi_squared is not None


def test_nothing_is_asked_of_a_reference_whose_log_probs_of_the_samples_nobody_needs(trainer, batch):
    made = trainer(reference=True)
    made.run.parts.needs_ref_log_probs = False
    made.ask_models(made.at(*batch()))
    assert made.models.reference.asked == []
    assert made.models.actor.asked == [(TOKENS, ["log_probs", "entropy"])]


def test_with_bypass_mode_the_engines_log_probs_are_the_old_ones(trainer, batch):
    made = trainer()
    made.run.config.algorithm.rollout_correction.bypass_mode = True
    scored, experience = batch()
    step = made.at(scored, experience)
    made.ask_models(step)
    assert step.metrics == {}
    assert made.models.actor.asked == []
    assert experience.old_log_probs.tolist() == [[-0.5, -0.5]] * 2


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

    made.stream.take = note("batch", lambda step: StepGroups(scored, {}, {}, {}))
    made.models.actor.forward = note("forward", made.models.actor.forward)
    made.models.actor.update = note("update", made.models.actor.update)
    made.batch.estimator = note("estimate", made.batch.estimator)
    made.train_step()
    assert abandonable == {"batch": True, "forward": True, "estimate": False, "update": False}
    assert (made.calls[0], made.calls[-1]) == ("held", "released")


def test_sample_rollouts_are_written_every_so_many_steps_and_in_the_last(trainer, batch):
    for frequency, steps in ((-1, []), (3, [3, 6, 9, 10]), (0, [])):
        made = trainer(trainer__log_rollouts_freq=frequency)
        written = []
        object.__setattr__(made.records, "write_rollouts", lambda step, batch, into=written: into.append(step))
        for made.step in range(1, 11):
            made.report(made.at(*batch()))
        assert written == steps


def test_the_policy_is_not_updated_in_the_critics_warm_up(trainer, batch):
    for number, updates in ((1, 0), (2, 0), (3, 2)):
        made = trainer(critic=True, trainer__critic_warmup=2)
        made.step = number
        step = made.at(*batch())
        made.begin_updates(step)
        made.update(step)
        assert Counter(made.calls)["actor.update"] == updates
        assert ("actor/loss" in step.metrics) is bool(updates)
        assert step.metrics["critic/loss"] == 1.5
        assert made.is_changed


class Elsewhere:
    """The batch in another process: its calls are begun, and somebody waits for them."""

    def __init__(self, batch, calls):
        self.batch, self.said = batch, calls

    def __getattr__(self, name):
        def submit(*args, **keywords):
            self.said.append(f"{name} begins")
            value = getattr(self.batch, name)(*args, **keywords)
            return SimpleNamespace(result=lambda: self.said.append(f"wait for {name}") or value)

        def call(*args, **keywords):
            return submit(*args, **keywords).result()

        call.submit = submit
        return call


def test_all_calls_on_the_batch_between_two_models_begin_before_the_first_wait(trainer, batch):
    made, calls = trainer(critic=True, reference=True, actor__ppo_epochs=2, trainer__log_rollouts_freq=-1), []
    scored, experience = batch([1.0, 0.0, 0.0, 1.0], n=2)
    step = made.at(scored, experience)
    made.batch = Elsewhere(made.batch, calls)
    made.ask_models(step)
    made.estimate_advantages(step)
    begun = ["put", "put", "put", "estimate", "measure", "rows", "correct"]
    assert calls[: len(begun)] == [f"{name} begins" for name in begun]
    assert not any(call.endswith("begins") for call in calls[len(begun) :])
    calls.clear()
    made.update(step)
    assert calls == ["wait for rows", "wait for correct"]  # begun before; mini-batches are rows of these
    assert len(made.models.actor.updated) == len(made.models.critic.updated) == 4
    made.report(step)
    assert calls[2:] == ["end begins"]
    made.stream.take = lambda number: StepGroups(scored, {}, {})
    made.take_groups(step)
    assert calls[3:] == ["wait for end", "take begins", "wait for take"]


def test_a_reference_that_reads_early_is_asked_in_place_of_the_reference_and_its_time_is_beside_the_step(
    trainer, batch
):
    made = trainer(reference=True)
    scored, _ = batch()
    made.early_reference = SimpleNamespace(forward=made.models.actor.forward, seconds=4.0)
    made.stream.take = lambda step: StepGroups(scored, {}, {"gen": 2.0})
    metrics = made.train_step()
    assert "reference.forward" not in made.calls and made.calls.count("actor.forward") == 2
    assert metrics["timing_background_s/ref"] == 4.0 and metrics["timing_s/ref"] < 1.0
    assert made.models.actor.updated[0].ref_log_probs is not None


def test_the_critic_trains_on_the_rows_before_they_are_corrected(trainer, batch):
    made = trainer(critic=True)
    made.batch.corrector = ImportanceCorrector(
        RolloutCorrectionConfig(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=2.0)
    )
    scored, experience = batch()
    experience.old_log_probs = experience.rollout_log_probs + torch.tensor([[0.0, -3.0], [0.0, 0.0]])
    step = made.at(scored, experience)
    made.estimate_advantages(step)
    made.update(step)
    assert [each.response_mask.sum().item() for each in made.models.critic.updated] == [2, 2]
    assert all(each.rollout_weights is None for each in made.models.critic.updated)
    assert [each.response_mask.sum().item() for each in made.models.actor.updated] == [1, 2]
