import numpy as np
import pytest
import torch

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl_grpo.advantages.grpo import grpo
from corerl_grpo.advantages.options import GrpoOptions


def inputs(scores, groups, mask=None):
    mask = torch.ones(len(scores), 3, dtype=torch.bool) if mask is None else mask
    rewards = torch.zeros(len(scores), 3)
    rewards[:, -1] = torch.tensor(scores)
    return AdvantageInputs(rewards * mask, mask, torch.tensor(groups))


def test_advantages_are_the_papers_formula_in_float64():
    scores, groups = [1.0, 0.0, 0.0, 0.3, 0.9, 0.5], [0, 1, 0, 1, 0, 1]
    result = grpo(inputs(scores, groups), GrpoOptions())
    for row, (score, group) in enumerate(zip(scores, groups, strict=True)):
        members = np.array([s for s, g in zip(scores, groups, strict=True) if g == group], dtype=np.float64)
        expected = (score - members.mean()) / (members.std(ddof=1) + 1e-6)
        assert result.advantages[row].tolist() == pytest.approx([expected] * 3, rel=1e-5)
    assert torch.equal(result.advantages, result.returns)


def test_without_the_deviation_only_the_mean_is_subtracted():
    result = grpo(inputs([1.0, 0.0], [0, 0]), GrpoOptions(norm_adv_by_std_in_grpo=False))
    assert result.advantages[:, 0].tolist() == [0.5, -0.5]


def test_equal_scores_and_a_group_of_one_give_zero():
    result = grpo(inputs([1.0, 1.0, 0.7], [0, 0, 1]), GrpoOptions())
    assert result.advantages.tolist() == [[0.0] * 3] * 3


def test_a_row_without_a_score_is_in_no_mean_and_gets_zero():
    mask = torch.tensor([[True] * 3, [True] * 3, [False] * 3])
    result = grpo(inputs([1.0, 0.0, 77.0], [0, 0, 0], mask), GrpoOptions(norm_adv_by_std_in_grpo=False))
    assert result.advantages[:, 0].tolist() == [0.5, -0.5, 0.0]


def test_advantages_are_zero_outside_the_mask():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    result = grpo(AdvantageInputs(rewards, mask, torch.tensor([0, 0])), GrpoOptions())
    assert (result.advantages[~mask] == 0).all()
    assert result.advantages[0, 0] == pytest.approx(0.5 / (0.5**0.5 + 1e-6))
