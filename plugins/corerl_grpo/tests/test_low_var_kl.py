import pytest
import torch

from corerl_grpo.kl.low_var_kl import low_var_kl


def test_values_by_hand():
    difference = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    e = 2.718281828459045
    assert low_var_kl(difference, torch.zeros(3)).tolist() == pytest.approx([0.0, 1 / e, e - 2], rel=1e-12)


def test_its_mean_under_the_policy_is_the_kl_divergence():
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = float((policy * (policy / reference).log()).sum())
    assert float((policy * low_var_kl(policy.log(), reference.log())).sum()) == pytest.approx(expected, rel=1e-12)


def test_far_tokens_are_held():
    assert float(low_var_kl(torch.tensor(-100.0), torch.tensor(0.0))) == 10.0
