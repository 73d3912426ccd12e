import itertools
import math

import pytest
import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_ppo.gae import gae
from corerl_ppo.options import GaeOptions

PREFIXES = [6, 1, 4, 0, 3]
"""valid tokens of each row, from its first on"""
HOLES = ["110011", "001011", "100001", "000000", "010110"]
"""valid tokens of each row: the first ones may be masked too"""


def prefix_mask() -> torch.Tensor:
    return torch.arange(6) < torch.tensor(PREFIXES)[:, None]


def hole_mask() -> torch.Tensor:
    return torch.tensor([[character == "1" for character in row] for row in HOLES])


def inputs(mask: torch.Tensor, dtype: torch.dtype = torch.float64, seed: int = 0) -> AdvantageInputs:
    """Rewards and values are 0 at masked tokens."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(mask.shape, generator=generator, dtype=torch.float64) * mask
    values = torch.randn(mask.shape, generator=generator, dtype=torch.float64) * mask
    return AdvantageInputs(rewards.to(dtype), mask, torch.arange(len(mask)), values=values.to(dtype))


def before_whitening(batch: AdvantageInputs, gamma: float, lam: float) -> list[list[float]]:
    """Equation 16 of 1506.02438 as the double sum that it is: A_t = sum_l (gamma lam)^l delta_{t+l}."""
    assert batch.values is not None
    rows = []
    for rewards, values, mask in zip(
        batch.rewards.tolist(), batch.values.tolist(), batch.response_mask.tolist(), strict=True
    ):
        valid = [t for t, used in enumerate(mask) if used]
        following = {t: values[after] for t, after in itertools.pairwise(valid)}
        deltas = [rewards[t] + gamma * following.get(t, 0.0) - values[t] for t in valid]
        row = [0.0] * len(mask)
        for index, t in enumerate(valid):
            row[t] = sum((gamma * lam) ** step * delta for step, delta in enumerate(deltas[index:]))
        rows.append(row)
    return rows


def expected(batch: AdvantageInputs, gamma: float, lam: float) -> tuple[list[list[float]], list[list[float]]]:
    """Whitened advantages, and returns of the advantages before that."""
    assert batch.values is not None
    raw, values, mask = before_whitening(batch, gamma, lam), batch.values.tolist(), batch.response_mask.tolist()
    places = [(i, t) for i, row in enumerate(mask) for t, used in enumerate(row) if used]
    mean = sum(raw[i][t] for i, t in places) / len(places)
    variance = sum((raw[i][t] - mean) ** 2 for i, t in places) / (len(places) - 1)
    advantages = [[0.0] * len(row) for row in mask]
    returns = [[0.0] * len(row) for row in mask]
    for i, t in places:
        advantages[i][t] = (raw[i][t] - mean) / math.sqrt(variance + 1e-8)
        returns[i][t] = raw[i][t] + values[i][t]
    return advantages, returns


def assert_close(result: Advantages, batch: AdvantageInputs, gamma: float, lam: float, tolerance: float) -> None:
    advantages, returns = expected(batch, gamma, lam)
    for row in range(len(advantages)):
        assert result.advantages[row].tolist() == pytest.approx(advantages[row], rel=tolerance, abs=tolerance)
        assert result.returns[row].tolist() == pytest.approx(returns[row], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("mask", [prefix_mask(), hole_mask()], ids=["prefix", "holes"])
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.3, 0.0])
def test_advantages_and_returns_are_the_papers_in_float64(mask: torch.Tensor, gamma: float, lam: float) -> None:
    batch = inputs(mask)
    assert_close(gae(batch, GaeOptions(gamma, lam)), batch, gamma, lam, 1e-10)


@pytest.mark.parametrize("mask", [prefix_mask(), hole_mask()], ids=["prefix", "holes"])
def test_float32_in_float32_out(mask: torch.Tensor) -> None:
    batch = inputs(mask, torch.float32)
    result = gae(batch, GaeOptions(0.99, 0.95))
    assert result.advantages.dtype == result.returns.dtype == torch.float32
    assert_close(result, batch, 0.99, 0.95, 1e-5)


def test_by_hand_with_a_tools_output_between() -> None:
    batch = AdvantageInputs(
        rewards=torch.tensor([[0.0, 0.0, 0.0, 1.0]], dtype=torch.float64),
        response_mask=torch.tensor([[True, False, True, True]]),
        group_ids=torch.tensor([0]),
        values=torch.tensor([[0.5, 9.0, 0.25, 0.75]], dtype=torch.float64),
    )
    # deltas -0.25, 0.5, 0.25; with gamma lam = 0.5: A = 0.0625, 0.625, 0.25; R = A + V
    result = gae(batch, GaeOptions(gamma=1.0, lam=0.5))
    assert result.returns.tolist() == [[0.5625, 0.0, 0.875, 1.0]]
    mean, deviation = 0.3125, math.sqrt((0.25**2 + 0.3125**2 + 0.0625**2) / 2 + 1e-8)
    whitened = [(a - mean) / deviation for a in (0.0625, 0.625, 0.25)]
    assert result.advantages[0].tolist() == pytest.approx([whitened[0], 0.0, *whitened[1:]], rel=1e-12)


@pytest.mark.parametrize("mask", [prefix_mask(), hole_mask()], ids=["prefix", "holes"])
def test_a_long_batch_agrees_with_the_recursion(mask: torch.Tensor) -> None:
    batch = inputs(mask.repeat(2, 60), seed=3)  # prefixes become holes of many tokens
    assert_close(gae(batch, GaeOptions(1.0, 0.95)), batch, 1.0, 0.95, 1e-9)


def test_what_the_critic_says_at_masked_tokens_does_not_matter() -> None:
    mask = hole_mask()
    batch = inputs(mask)
    assert batch.values is not None
    other = AdvantageInputs(
        batch.rewards, mask, batch.group_ids, values=torch.where(mask, batch.values, 1e6 * torch.ones(1).double())
    )
    for left, right in zip(gae(batch, GaeOptions(0.9, 0.8)), gae(other, GaeOptions(0.9, 0.8)), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (3, 1)])
def test_a_batch_without_valid_tokens_is_all_zero(shape: tuple[int, int]) -> None:
    result = gae(inputs(torch.zeros(shape, dtype=torch.bool)), GaeOptions())
    assert result.advantages.tolist() == result.returns.tolist() == [[0.0] * shape[1]] * shape[0]


def test_one_token_for_each_response_is_reward_minus_value() -> None:
    batch = inputs(torch.ones(4, 1, dtype=torch.bool))
    result = gae(batch, GaeOptions(0.9, 0.9))
    assert result.returns.flatten().tolist() == pytest.approx(batch.rewards.flatten().tolist(), rel=1e-12)
    assert_close(result, batch, 0.9, 0.9, 1e-12)


def test_a_run_without_a_critic_is_named() -> None:
    batch = inputs(prefix_mask())
    without = AdvantageInputs(batch.rewards, batch.response_mask, batch.group_ids)
    with pytest.raises(MissingInputError, match="'values'"):
        gae(without, GaeOptions())
