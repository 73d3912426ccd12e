import pytest
import torch

from corerl.batch.experience import collate
from corerl.objective import PolicyObjective, SupervisedObjective, ValueObjective, loss_weights
from corerl.registry.policy_losses import LossOutput
from corerl.registry.training_strategies import TokenOutputs


def batch():
    experience = collate([[1], [1]], [[2, 3], [4]], [0, 0])
    experience.old_log_probs = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    experience.ref_log_probs = torch.tensor([[-1.5, -2.0], [-2.0, 0.0]])
    experience.advantages = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
    return experience


def test_supervised_objective_is_the_mean_cross_entropy_of_the_response_tokens():
    log_probs = torch.tensor([[-1.0, -2.0], [-6.0, 99.0]])
    output = SupervisedObjective()(TokenOutputs(log_probs), batch())
    assert float(output.loss) == pytest.approx((1 + 2 + 6) / 3)


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
    output = SupervisedObjective()(TokenOutputs(log_probs), batch())
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
