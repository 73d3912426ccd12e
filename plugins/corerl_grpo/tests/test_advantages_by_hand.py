import torch

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl.plugins import Plugins

REGISTRY = Plugins().registries.advantage_estimators


def estimate(name, inputs):
    return REGISTRY.select(name).load()(inputs)


def test_the_optimal_token_baseline_of_a_policy_without_doubt_is_zero():
    ones, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    inputs = AdvantageInputs(ones, mask, torch.zeros(2).long(), log_probs=0 * ones, sum_pi_squared=ones)
    assert estimate("optimal_token_baseline", inputs).advantages.tolist() == [[3.0, 2.0, 1.0]] * 2


def test_two_best_responses_get_nothing_from_passk():
    rewards, mask = torch.tensor([[1.0], [1.0], [0.0]]), torch.ones(3, 1, dtype=torch.bool)
    assert (
        estimate("grpo_passk", AdvantageInputs(rewards, mask, torch.zeros(3).long())).advantages.tolist() == [[0.0]] * 3
    )


def test_maxrl_of_a_group_without_a_success_is_zero():
    rewards, mask = torch.tensor([[0.0], [0.0], [1.0], [0.0]]), torch.ones(4, 1, dtype=torch.bool)
    result = estimate("maxrl", AdvantageInputs(rewards, mask, torch.tensor([0, 0, 1, 1])))
    assert result.advantages.flatten().tolist() == [0.0, 0.0, 1.0, -1.0]


def test_the_zero_tail_keeps_the_return():
    mask = torch.tensor([[True, True], [True, False]])
    rewards, half = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.full((2, 2), 0.5)
    inputs = AdvantageInputs(rewards, mask, torch.zeros(2).long(), log_probs=half.log(), sum_pi_squared=half)
    # equal energies at the first token: the baseline is the mean return, 0.5; one response is left at the second
    assert estimate("optimal_token_baseline", inputs).advantages.tolist() == [[0.5, 1.0], [-0.5, 0.0]]


def test_reinforce_plus_plus_whitens_over_tokens_not_over_responses():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    advantages = estimate("reinforce_plus_plus", AdvantageInputs(rewards, mask, torch.arange(2))).advantages
    # returns 1, 1, 1, 0: mean 3/4, unbiased variance 1/4
    expected = torch.tensor([[0.5, 0.5, 0.5], [-1.5, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(advantages, expected, atol=1e-7)
