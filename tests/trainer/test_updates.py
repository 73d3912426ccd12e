"""The updates of a step: mini-batches, correction, selected tokens, and those that are not finite."""

from collections import Counter

import pytest
import torch

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.losses import Mean
from corerl.errors import NonFiniteError, RunError
from corerl.seeding import Seeds
from corerl.telemetry.metrics import merge_means
from corerl_correction.corrector import ImportanceCorrector

TOKENS = ["group_ids", "input_ids", "prompt_lengths", "response_lengths", "response_mask"]


def updated(made, scored, experience):
    """The metrics of the updates of a step."""
    step = made.at(scored, experience)
    made.begin_updates(step)
    made.update(step)
    return step.metrics


def test_each_mini_batch_is_of_whole_prompts_and_has_the_weights_of_its_own_tokens(trainer, batch):
    """Rows of 1, 2, 3 and 4 tokens, two to a prompt; the whole comes twice."""
    made = trainer()
    made.at(*batch([1.0] * 4, n=2, lengths=[1, 2, 3, 4]))
    cut = list(made.updates.mini_batches(made.batch.experience, 1, 2, "token-mean"))
    assert [rows.tolist() for rows, _ in cut] == [[0, 1], [2, 3]] * 2
    for rows, mini_batch in cut:
        tokens = sum(row + 1 for row in rows.tolist())
        assert mini_batch.loss_weights[mini_batch.response_mask].tolist() == pytest.approx([1 / tokens] * tokens)


def test_a_mini_batch_without_a_trained_token_is_no_update(trainer, batch):
    made = trainer()
    made.at(*batch([1.0, None, 2.0]))
    assert [rows.tolist() for rows, _ in made.updates.mini_batches(made.batch.experience, 1, 1, "token-mean")] == [
        [0],
        [2],
    ]


@pytest.mark.parametrize(("factor", "weight"), [(None, 1 / 8), (5, 1 / 5)])
def test_the_constant_length_is_the_longest_response_unless_it_is_given(trainer, batch, factor, weight):
    made = trainer(actor__loss_scale_factor=factor)
    made.at(*batch([1.0]))
    [(_, mini_batch)] = made.updates.mini_batches(made.batch.experience, 1, 1, "seq-mean-token-sum-norm")
    assert mini_batch.loss_weights.flatten().tolist() == pytest.approx([weight, weight])


def test_the_critic_has_mini_batches_epochs_and_an_aggregation_of_its_own_or_else_the_actors(trainer, batch):
    made = trainer(critic=True, actor__ppo_epochs=2)
    scored, experience = batch([1.0] * 4)
    updated(made, scored, experience)
    assert Counter(made.calls) == {"critic.update": 8, "actor.update": 8}
    made = trainer(critic=True, critic__ppo_epochs=3, critic__ppo_mini_batch_size=2, critic__loss_agg_mode="token-sum")
    updated(made, scored, experience)
    assert Counter(made.calls) == {"critic.update": 6, "actor.update": 4}
    assert made.calls[:6] == ["critic.update"] * 6
    assert made.models.critic.updated[0].loss_weights.tolist() == [[1.0, 1.0]] * 2
    assert made.models.actor.updated[0].loss_weights.tolist() == [[0.5, 0.5]]


def test_the_coefficient_of_the_kl_loss_is_a_metric_with_a_kl_loss_alone(trainer, batch):
    made = trainer(actor__kl_loss_coef=0.125)
    scored, experience = batch([1.0])
    assert "actor/kl_coef" not in updated(made, scored, experience)
    made.models.actor.update = lambda mini_batch: {"kl_loss": Mean(2.0, 1.0)}
    assert updated(made, scored, experience)["actor/kl_coef"] == 0.125


def test_a_step_without_a_score_is_printed(trainer, batch, capsys):
    made = trainer()
    scored, experience = batch([None, None])
    assert updated(made, scored, experience) == {}
    assert capsys.readouterr().err == "step 1: no response has a score; the weights are not updated\n"
    scored, experience = batch([1.0, None])
    updated(made, scored, experience)
    assert capsys.readouterr().err == ""


def test_an_update_that_is_not_finite_is_left_out_counted_and_its_samples_are_named(trainer, batch, capsys):
    """Of the second mini-batch, rows 2 and 3 of the batch, its row 1 is at fault; of the third nobody knows."""
    made = trainer()
    scored, experience = batch([1.0] * 6, n=2)
    made.models.actor.says = {2: NonFiniteError("loss is nan", [1]), 3: NonFiniteError("norm is inf")}
    metrics = updated(made, scored, experience)
    updates = {name: value for name, value in metrics.items() if name.startswith("actor/")}
    assert updates == {"actor/loss": 1.0, "actor/skipped_updates": pytest.approx(2 / 3)}
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1: loss is nan; 1 samples (response 3 to prompt 1 of 'acme/sums') are saved in ")
    assert second.startswith("step 1: norm is inf; 2 samples (response 4 to prompt 2 of 'acme/sums', response 5 to ")


def corrected(made, experience, staleness):
    """What a step does with its batch; the metrics."""
    correction, means = made.batch.corrector.of_batch(experience, staleness)
    made.batch.corrector.check(means, staleness)
    made.batch.corrector.apply(correction, experience)
    return merge_means([means], "rollout_corr")


def test_rollout_correction_weights_the_tokens_and_says_how_many_it_took(trainer, batch):
    """log pi_old - log pi_rollout is 0.5, 0, -0.5 and -3 at four tokens; the ratio of the last, 0.05, is rejected."""
    made = trainer()
    made.batch.corrector = ImportanceCorrector(
        RolloutCorrectionConfig(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=2.0)
    )
    _, experience = batch()
    experience.old_log_probs = torch.tensor([[0.0, -0.5], [-1.0, -3.5]])
    metrics = corrected(made, experience, 0)
    assert metrics["rollout_corr/rejected_fraction"] == 0.25
    assert metrics["rollout_corr/log_prob_abs_diff"] == pytest.approx(1.0)
    assert experience.response_mask.tolist() == [[True, True], [True, False]]
    ratios = [2.718281828**0.5, 1.0, 2.718281828**-0.5, 0.0]
    assert experience.rollout_weights.flatten().tolist() == pytest.approx(ratios)


def test_without_weights_or_rejection_nothing_is_rejected_and_the_difference_is_a_metric(trainer, batch):
    made = trainer()
    _, experience = batch()
    metrics = corrected(made, experience, 0)
    assert "rollout_corr/rejected_fraction" not in metrics
    assert metrics["rollout_corr/log_prob_abs_diff"] == pytest.approx(0.5)
    assert experience.rollout_weights is None


def test_an_engine_that_disagrees_ends_the_run_unless_its_responses_are_stale(trainer, batch):
    made = trainer()
    _, experience = batch()
    made.batch.corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="none"), most=0.25)
    assert corrected(made, experience, 1)
    with pytest.raises(RunError, match=r"differ by 0\.5 a token"):
        corrected(made, experience, 0)


@pytest.mark.parametrize("why", ["bypass", "no old", "no rollout"])
def test_nothing_is_corrected_where_there_are_not_two_policies(trainer, batch, why):
    made = trainer()
    _, experience = batch()
    made.batch.corrector = ImportanceCorrector(RolloutCorrectionConfig(rollout_is="token", bypass_mode=why == "bypass"))
    if why == "no old":
        experience.old_log_probs = None
    if why == "no rollout":
        experience.rollout_log_probs = None
    assert corrected(made, experience, 0) == {}
    assert experience.rollout_weights is None


def test_tokens_are_selected_with_the_policy_as_it_is_before_their_own_update(trainer, batch):
    given = []

    def select(inputs, uniforms):
        given.append((inputs.log_probs, inputs.old_log_probs, uniforms))
        return inputs.log_probs < -2.5

    made = trainer(actor__ppo_epochs=2, select_tokens=select)
    scored, experience = batch([1.0, 1.0], lengths=[2, 3])
    updated(made, scored, experience)
    assert made.calls == ["actor.forward", "actor.update"] * 4
    assert made.models.actor.asked == [(TOKENS, ["log_probs"])] * 4
    assert [float(log_probs[0, 0]) for log_probs, *_ in given] == [-1.0, -2.0, -3.0, -4.0]
    assert {float(old[0, 0]) for _, old, _ in given} == {-1.0}
    assert [bool(updated.selected.all()) for updated in made.models.actor.updated] == [False, False, True, True]
    for number, (log_probs, _, uniforms) in enumerate(given):
        expected = Seeds(0).uniforms(1, number, tuple(log_probs.shape))
        assert uniforms.tolist() == expected.tolist()
    assert len({float(uniforms[0, 0]) for *_, uniforms in given}) == 4


def test_mini_batches_are_corrected_just_before_their_updates_and_one_without_a_token_is_left_out(trainer, batch):
    """log pi - log pi_rollout is -0.5, -1.5 and -2.5: of the third update, each token is rejected."""
    correction = RolloutCorrectionConfig(
        bypass_mode=True, rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=8.0
    )
    made = trainer(corrector=ImportanceCorrector(correction))
    scored, experience = batch([1.0] * 3)
    metrics = updated(made, scored, experience)
    assert made.calls == ["actor.forward", "actor.update"] * 2 + ["actor.forward"]
    assert metrics["rollout_corr/rejected_fraction"] == pytest.approx(1 / 3)
    assert [float(each.old_log_probs[0, 0]) for each in made.models.actor.updated] == [-1.0, -2.0]


def zeroed(experience, rows):
    """The batch with advantages of 1, and of 0 in these rows."""
    experience.advantages = experience.response_mask.float()
    experience.advantages[rows] = 0.0


def test_rows_without_an_advantage_are_trained_by_default(trainer, batch):
    made = trainer(zero_at_zero_advantage=True)
    scored, experience = batch([1.0] * 4, n=2)
    zeroed(experience, [0, 2, 3])
    assert "actor/skipped_tokens" not in updated(made, scored, experience)
    assert [len(each) for each in made.models.actor.updated] == [2, 2]


def test_rows_without_an_advantage_are_skipped_with_the_loss_weights_of_the_whole_mini_batch(trainer, batch):
    """Two rows to a prompt, prompts of one token. Row 1 is skipped; the second mini-batch keeps its shortest row."""
    made = trainer(zero_at_zero_advantage=True, actor__zero_advantage="skip", actor__ppo_epochs=2)
    scored, experience = batch([1.0] * 4, n=2, lengths=[1, 3, 4, 2])
    zeroed(experience, [1, 2, 3])
    metrics = updated(made, scored, experience)
    first, second, *_ = made.models.actor.updated
    assert first.loss_weights.tolist() == [[pytest.approx(1 / 4)]]
    assert second.response_lengths.tolist() == [2] and second.loss_weights.tolist() == [[pytest.approx(1 / 6)] * 2]
    lengths = experience.lengths.tolist()
    assert metrics["actor/skipped_tokens"] == pytest.approx((lengths[1] + lengths[2]) / sum(lengths))
    assert len(made.models.actor.updated) == 4


@pytest.mark.parametrize(
    "inexact", [{"zero_at_zero_advantage": False}, {"kl_loss": ()}, {"actor__entropy_coeff": 0.1}], ids=str
)
def test_nothing_is_skipped_whose_gradient_may_not_be_zero(trainer, batch, inexact):
    made = trainer(**{"zero_at_zero_advantage": True, "actor__zero_advantage": "skip", **inexact})
    scored, experience = batch([1.0] * 4, n=2)
    zeroed(experience, [0, 2, 3])
    updated(made, scored, experience)
    assert [len(each) for each in made.models.actor.updated] == [2, 2]


def test_the_critic_is_trained_on_every_row(trainer, batch):
    made = trainer(critic=True, zero_at_zero_advantage=True, actor__zero_advantage="drop")
    scored, experience = batch([1.0] * 4, n=2)
    zeroed(experience, [0, 1, 2])
    updated(made, scored, experience)
    assert [len(each) for each in made.models.critic.updated] == [2, 2]
    assert [len(each) for each in made.models.actor.updated] == [2]


def test_a_failed_update_names_the_samples_that_are_left_in_it(trainer, batch, capsys):
    made = trainer(zero_at_zero_advantage=True, actor__zero_advantage="skip")
    scored, experience = batch([1.0] * 4, n=4)
    zeroed(experience, [0, 1])
    made.models.actor.says = {1: NonFiniteError("loss is nan", [1])}
    updated(made, scored, experience)
    assert "loss is nan; 1 samples (response 3 to prompt 0 of" in capsys.readouterr().err


def test_a_dropped_prompt_counts_in_no_loss_weight_and_one_with_an_advantage_is_whole(trainer, batch):
    """One mini-batch of three prompts; the second has no advantage, the third one in one of its rows."""
    made = trainer(actor__zero_advantage="drop", actor__ppo_mini_batch_size=3, actor__loss_agg_mode="prompt-mean")
    scored, experience = batch([1.0] * 6, n=2, lengths=[1, 1, 2, 2, 3, 1])
    zeroed(experience, [2, 3, 4])
    mask = experience.response_mask.clone()
    metrics = updated(made, scored, experience)
    [update] = made.models.actor.updated
    assert update.group_ids.tolist() == [0, 0, 2, 2]
    assert update.loss_weights.sum(1).tolist() == pytest.approx([1 / 4, 1 / 4, 3 / 8, 1 / 8])
    assert metrics["actor/skipped_tokens"] > 0 and torch.equal(experience.response_mask, mask)


def test_a_batch_whose_prompts_are_all_dropped_is_printed(trainer, batch, capsys):
    made = trainer(actor__zero_advantage="drop")
    scored, experience = batch([1.0] * 2)
    zeroed(experience, [0, 1])
    assert updated(made, scored, experience) == {"actor/skipped_tokens": 1.0}
    assert "no prompt has an advantage; the weights" in capsys.readouterr().err


def test_annotators_see_each_mini_batch_just_before_its_update(trainer, batch):
    """The second epoch is seen anew; columns reach the worker, and metrics are means over all."""
    made, seen = trainer(actor__ppo_epochs=2), []

    class Annotator:
        part = "teacher"

        def annotate(self, mini_batch, rows, rollouts):
            seen.append((rows.tolist(), len(rollouts), len(made.models.actor.updated)))
            mini_batch.ref_log_probs = torch.full(mini_batch.response_mask.shape, float(len(seen)))
            return {"seen": Mean(float(len(seen)), 1.0)}

    made.updates._annotators = [Annotator()]
    metrics = updated(made, *batch([1.0, 2.0]))
    assert seen == [([0], 2, 0), ([1], 2, 1), ([0], 2, 2), ([1], 2, 3)]
    assert [float(each.ref_log_probs[0, 0]) for each in made.models.actor.updated] == [1, 2, 3, 4]
    assert metrics["actor/seen"] == 2.5
