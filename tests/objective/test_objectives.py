import pytest
import torch

from corerl.contracts.advantage_estimators import Advantages
from corerl.contracts.experience import collate
from corerl.contracts.losses import Mean, masked_mean
from corerl.contracts.policy_losses import LossOutput
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import RunError
from corerl.objective import (
    OwnPass,
    PolicyObjective,
    ValueObjective,
    estimate,
    loss_weights,
    policy_loss_inputs,
)


def batch():
    experience = collate([[1], [1]], [[2, 3], [4]], [0, 0])
    experience.old_log_probs = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    experience.ref_log_probs = torch.tensor([[-1.5, -2.0], [-2.0, 0.0]])
    experience.advantages = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
    return experience


def test_policy_objective_adds_kl_and_subtracts_entropy_with_their_weights():
    objective = PolicyObjective(
        policy_loss=lambda inputs: LossOutput(-inputs.advantages * inputs.log_probs),
        kl_type=lambda log_probs, ref: log_probs - ref,
        kl_loss_coef=0.1,
        entropy_coeff=0.01,
    )
    log_probs = torch.tensor([[-1.0, -2.0], [-4.0, 0.0]])
    entropy = torch.tensor([[1.0, 2.0], [3.0, 99.0]])
    output = objective(TokenOutputs(log_probs, entropy), batch())
    policy, kl, bonus = (1 + 2 - 4) / 3, (0.5 + 0.0 - 2.0) / 3, (1 + 2 + 3) / 3
    assert float(output.loss) == pytest.approx(policy + 0.1 * kl - 0.01 * bonus)
    assert {name: float(value) for name, value in output.parts.items()} == pytest.approx(
        {"pg_loss": policy, "kl_loss": kl, "entropy_loss": bonus}
    )
    assert (float(output.metrics["ppo_kl"].total), int(output.metrics["ppo_kl"].count)) == (pytest.approx(1.0), 3)


def test_rollout_correction_weights_the_policy_loss_alone():
    """Terms 1, 2 and -4, weighted by 2, 0.5 and 3; KL terms 0.5, 0 and -2 and entropies 1, 2 and 3 count once."""
    experience = batch()
    experience.rollout_weights = torch.tensor([[2.0, 0.5], [3.0, 7.0]])
    objective = PolicyObjective(
        policy_loss=lambda inputs: LossOutput(-inputs.advantages * inputs.log_probs),
        kl_type=lambda log_probs, ref: log_probs - ref,
        kl_loss_coef=0.1,
        entropy_coeff=0.01,
    )
    log_probs, entropy = torch.tensor([[-1.0, -2.0], [-4.0, 0.0]]), torch.tensor([[1.0, 2.0], [3.0, 99.0]])
    output = objective(TokenOutputs(log_probs, entropy), experience)
    policy, kl, bonus = (2 * 1 + 0.5 * 2 - 3 * 4) / 3, (0.5 + 0.0 - 2.0) / 3, (1 + 2 + 3) / 3
    assert {name: float(value) for name, value in output.parts.items()} == pytest.approx(
        {"pg_loss": policy, "kl_loss": kl, "entropy_loss": bonus}
    )
    assert float(output.loss) == pytest.approx(policy + 0.1 * kl - 0.01 * bonus)


def test_nan_outside_the_mask_reaches_neither_loss_nor_gradient():
    log_probs = torch.tensor([[-1.0, -2.0], [-4.0, float("nan")]], requires_grad=True)
    output = PolicyObjective(lambda inputs: LossOutput(-inputs.log_probs))(TokenOutputs(log_probs), batch())
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert log_probs.grad[1, 1] == 0


def test_the_critics_metrics_are_its_loss_and_its_mean_prediction():
    """Errors of 1, 2 and 3 at three tokens; values of 1, 4 and -2."""
    experience = batch()
    experience.values = torch.zeros(2, 2)
    experience.returns = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    values = torch.tensor([[1.0, 4.0], [-2.0, 50.0]])
    objective = ValueObjective(lambda inputs: LossOutput((inputs.values - inputs.returns) ** 2))
    output = objective(TokenOutputs(values=values), experience)
    assert float(output.parts["vf_loss"]) == pytest.approx((1 + 4 + 9) / 3)
    assert output.metrics["vpred_mean"].value == pytest.approx((1 + 4 - 2) / 3)


def no_loss(inputs):
    return LossOutput(torch.zeros(inputs.log_probs.shape))


def test_an_objective_asks_for_the_outputs_of_its_terms_and_no_others():
    assert PolicyObjective(no_loss).wanted == {"log_probs"}
    assert PolicyObjective(no_loss, terms=[Term()]).wanted == {"log_probs", "the function"}
    assert PolicyObjective(no_loss, entropy_coeff=1e-9).wanted == {"log_probs", "entropy"}
    assert ValueObjective(no_loss).wanted == {"values"}


def test_a_policy_loss_alone_needs_neither_reference_nor_entropy():
    experience = batch()
    experience.ref_log_probs = None
    output = PolicyObjective(lambda inputs: LossOutput(inputs.advantages))(TokenOutputs(torch.zeros(2, 2)), experience)
    assert {name: float(value) for name, value in output.parts.items()} == pytest.approx({"pg_loss": (1 + 1 - 1) / 3})


class Term:
    """The entropy of each token, for the part ``further``."""

    name, coefficient, of_logits = "further", 0.5, "the function"

    def __call__(self, outputs, batch):
        return outputs.entropy


def test_a_further_term_has_its_coefficient_in_the_loss_and_none_in_its_metric():
    outputs = TokenOutputs(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 99.0]]))
    output = PolicyObjective(no_loss, terms=[Term()])(outputs, batch())
    assert float(output.parts["further"]) == pytest.approx((1 + 2 + 3) / 3)
    assert float(output.loss) == pytest.approx(0.5 * (1 + 2 + 3) / 3)


def test_a_policy_loss_gets_each_column_of_the_batch_under_its_name():
    experience = batch()
    experience.rollout_log_probs, experience.selected = torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
    log_probs = torch.zeros(2, 2)
    inputs = policy_loss_inputs(log_probs, experience)
    assert inputs.log_probs is log_probs
    for name in ("old_log_probs", "advantages", "response_mask", "rollout_log_probs", "ref_log_probs", "selected"):
        assert getattr(inputs, name) is getattr(experience, name)


def test_metrics_of_a_loss_are_those_of_the_objective():
    own = {"clipfrac": Mean(1.0, 3.0)}
    output = PolicyObjective(lambda inputs: LossOutput(inputs.advantages, own))(
        TokenOutputs(torch.zeros(2, 2)), batch()
    )
    assert set(output.metrics) == {"clipfrac", "ppo_kl"}
    experience = batch()
    experience.values = experience.returns = torch.zeros(2, 2)
    output = ValueObjective(lambda inputs: LossOutput(inputs.values, own))(
        TokenOutputs(values=torch.zeros(2, 2)), experience
    )
    assert set(output.metrics) == {"clipfrac", "vpred_mean"}


def test_a_loss_that_is_already_summed_is_an_error():
    with pytest.raises(RunError, match=r"gave terms of shape \(\), not \(2, 2\): there must be one term for each"):
        PolicyObjective(lambda inputs: LossOutput(inputs.log_probs.sum()))(TokenOutputs(torch.zeros(2, 2)), batch())


def test_a_mean_leaves_out_what_is_masked():
    mean = masked_mean(torch.tensor([1.0, float("nan"), 4.0]), torch.tensor([True, False, True]))
    assert (float(mean.total), int(mean.count)) == (5.0, 2)


def test_an_estimator_gets_the_scores_parts_and_values_of_trained_tokens_alone(scored_rollouts):
    scored = scored_rollouts([1.0, None])
    experience = scored.experience()
    experience.old_log_probs, weights = torch.full((2, 2), -1.0), torch.ones(2, 2)
    scored.results[0] = RewardResult(1.0, {"format": 0.5})
    experience.values = torch.full((2, 2), 9.0)
    experience.sum_pi_squared = torch.full((2, 2), 0.25)
    experience.greedy_scores = torch.tensor([3.0, 4.0])
    seen = []

    def estimator(inputs):
        seen.append(inputs)
        return Advantages(inputs.rewards, inputs.rewards)

    advantages = estimate(estimator, experience, scored.components(), weights).advantages
    assert advantages.tolist() == [[0.0, 1.0], [0.0, 0.0]]
    [inputs] = seen
    assert inputs.values.tolist() == [[9.0, 9.0], [0.0, 0.0]]
    assert inputs.rewards.tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert inputs.response_mask is experience.response_mask
    assert inputs.rollout_weights is weights
    assert inputs.log_probs is experience.old_log_probs
    assert inputs.sum_pi_squared is experience.sum_pi_squared
    assert inputs.greedy_scores.tolist() == [3.0, 4.0]
    assert inputs.group_ids.tolist() == [0, 1]
    assert inputs.components["format"].tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda inputs: None, r"a loss returned NoneType: it must return LossOutput\(terms, metrics\)"),
        (lambda inputs: -inputs.log_probs, "a loss returned Tensor: it must return LossOutput"),
        (
            lambda inputs: LossOutput(-inputs.log_probs, {"x": 3.0}),
            "a loss returned LossOutput with metrics {'x': 'float'}: .* metrics of type Mean",
        ),
        (lambda inputs: LossOutput(-inputs.log_probs.detach()), "terms without a gradient: .* from inputs.log_probs"),
    ],
)
def test_a_loss_that_returns_something_else_is_an_error(loss, message):
    log_probs = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(RunError, match=message):
        PolicyObjective(policy_loss=loss)(TokenOutputs(log_probs), batch())


def test_an_estimator_that_returns_something_else_is_an_error():
    experience = batch()
    experience.rewards = torch.zeros(2, 2)
    with pytest.raises(RunError, match=r"returned Tensor, not Advantages\(advantages, returns\)"):
        estimate(lambda inputs: inputs.rewards, experience, {}, None)
    with pytest.raises(RunError, match=r"returned shapes \(2, 2\) and \(2,\), not \(2, 2\): a number for each"):
        estimate(lambda inputs: Advantages(inputs.rewards, inputs.rewards.sum(1)), experience, {}, None)


def test_advantages_of_masked_tokens_are_0_whatever_an_estimator_returns(scored_rollouts):
    scored = scored_rollouts([1.0, None])
    undefined = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]])
    estimated = estimate(lambda inputs: Advantages(undefined, undefined), scored.experience(), {}, None)
    assert [column.tolist() for column in estimated] == [[[1.0, 2.0], [0.0, 0.0]]] * 2


COLUMNS = ("advantages", "old_log_probs", "ref_log_probs", "rollout_log_probs", "rollout_weights", "values", "returns")


@pytest.mark.parametrize("undefined", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", COLUMNS)
def test_an_undefined_number_at_a_masked_token_changes_neither_loss_nor_gradient(name, undefined):
    """0 times NaN is NaN in the gradient of a product, also if the product is left out of the sum."""

    def weights():
        return torch.tensor([[1.0, 1.0], [1.0, 0.0]])

    class Term:
        name, coefficient, of_logits = "distance", 0.5, None

        def __call__(self, outputs, batch):
            return outputs.log_probs * batch.rollout_log_probs

    objectives = (
        PolicyObjective(
            policy_loss=lambda inputs: LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp()),
            kl_type=lambda log_probs, ref: (ref - log_probs).exp() - (ref - log_probs) - 1,
            kl_loss_coef=0.1,
            entropy_coeff=0.01,
            terms=[Term()],
        ),
        ValueObjective(lambda inputs: LossOutput(torch.maximum(inputs.returns, inputs.values) * inputs.values)),
    )

    def loss_and_gradient(objective, column):
        outputs = [torch.tensor([[-1.0, -2.0], [-4.0, 7.0]], requires_grad=True) for _ in range(3)]
        experience = batch()
        experience.rollout_log_probs = experience.rollout_weights = weights()
        experience.values, experience.returns = weights(), weights()
        setattr(experience, name, column(getattr(experience, name).clone()))
        output = objective(TokenOutputs(outputs[0], outputs[1], values=outputs[2]), experience)
        output.loss.backward()
        return output.loss, [each.grad for each in outputs]

    def with_undefined(column):
        column[1, 1] = undefined
        return column

    for objective in objectives:
        loss, gradients = loss_and_gradient(objective, with_undefined)
        expected_loss, expected = loss_and_gradient(objective, lambda column: column)
        assert torch.equal(loss, expected_loss) and bool(loss.isfinite())
        for gradient, other in zip(gradients, expected, strict=True):
            assert (gradient is None) == (other is None)
            if gradient is not None:
                assert torch.equal(gradient, other) and gradient[1, 1] == 0


def test_an_own_pass_has_ratios_of_1_and_keeps_log_probs_and_entropy_of_all_rows():
    seen = []

    def loss(inputs):
        seen.append(inputs.old_log_probs)
        return LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp())

    own = OwnPass(PolicyObjective(loss))
    experience = batch()
    experience.old_log_probs, experience.row_ids = None, torch.tensor([1, 0])
    log_probs = torch.tensor([[-1.0, -2.0], [-4.0, 0.0]], requires_grad=True)
    own(TokenOutputs(log_probs, torch.tensor([[1.0, 2.0], [3.0, 0.0]])), experience).loss.backward()
    assert seen[0].tolist() == log_probs.tolist() and not seen[0].requires_grad
    assert log_probs.grad.tolist() == [[pytest.approx(-1 / 3)] * 2, [pytest.approx(1 / 3), 0.0]]
    outputs = own.outputs(torch.Size([2, 3]))
    assert outputs.log_probs.tolist() == [[-4.0, 0.0, 0.0], [-1.0, -2.0, 0.0]]
    assert outputs.entropy.tolist() == [[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]]
    with pytest.raises(RunError, match=r"did not call the objective with rows \[2, 3\]"):
        own.outputs(torch.Size([4, 2]))
