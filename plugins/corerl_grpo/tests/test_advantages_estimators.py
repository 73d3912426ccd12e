"""Every estimator against plain loops in float64, written from the papers, and on the edges of the contract."""

import dataclasses
import math
from statistics import fmean, stdev

import pytest
import torch

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl.errors import ConfigError, RunError
from corerl.plugins import Plugins

GROUPS = [1, 0, 1, 3, 0, 1, 2, 0, 2, 4]
"""rows of groups stand between each other; group 2 has one response, group 4 one that has no score"""
PREFIX = ["111111", "111100", "110000", "111110", "100000", "111100", "111000", "111111", "000000", "000000"]
HOLES = ["110111", "011100", "010100", "110011", "000001", "100101", "111001", "101111", "000000", "000000"]
SHAPES = {"prefix": PREFIX, "holes": HOLES}
REGISTRY = Plugins().registries.advantage_estimators


def estimate(name, inputs, **options):
    return REGISTRY.select({"name": name, **options}).load()(inputs)


def batch(shape="prefix", dtype=torch.float64, groups=GROUPS, seed=0):
    """Small token rewards and a score of 0 to 1 on the last token; groups 3 and 2 have one scored response."""
    mask = torch.tensor([[c == "1" for c in row] for row in SHAPES[shape]])
    generator = torch.Generator().manual_seed(seed)

    def random(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    rewards = torch.where(mask, 0.05 * random(10, 6), 0.0)
    for row, tokens in enumerate(mask):
        if tokens.any():
            rewards[row, int(tokens.nonzero()[-1])] += random(1).item()
    log_probs, spread = random(10, 6).log(), random(10, 6)
    return AdvantageInputs(
        rewards.to(dtype),
        mask,
        torch.tensor(groups),
        greedy_scores=random(10).to(dtype),
        log_probs=torch.where(mask, log_probs, 0.0).to(dtype),
        sum_pi_squared=torch.where(mask, (2 * log_probs).exp() + (1 - log_probs.exp()) ** 2 * spread, 0.0).to(dtype),
        components={"accuracy": random(10).to(dtype), "format": random(10).to(dtype)},
    )


class Reference:
    """The batch in plain Python."""

    def __init__(self, inputs):
        self.rewards, self.mask = inputs.rewards.tolist(), inputs.response_mask.tolist()
        self.groups, self.inputs = inputs.group_ids.tolist(), inputs
        self.own = [[t for t, kept in enumerate(row) if kept] for row in self.mask]
        self.scores = [sum(row) for row in self.rewards]
        self.scored = [row for row, own in enumerate(self.own) if own]

    def members(self, row):
        return [j for j in self.scored if self.groups[j] == self.groups[row]]

    def outcome(self, formula, scores=None):
        """formula(own score, scores of the group, row) at rows with something to compare, 0 elsewhere."""
        scores = scores or self.scores
        lone = {row for row in range(len(self.own)) if row not in self.scored or len(self.members(row)) < 2}
        return [
            0.0 if row in lone else formula(scores[row], [scores[j] for j in self.members(row)], row)
            for row in range(len(scores))
        ]

    def over_tokens(self, per_row):
        rows = [[a * kept for kept in row] for a, row in zip(per_row, self.mask, strict=True)]
        return torch.tensor(rows, dtype=torch.float64)

    def whitened(self, per_row):
        """Over the tokens of rows that have something to compare."""
        rows = [row for row in self.scored if len(self.members(row)) > 1]
        tokens = [per_row[row] for row in rows for _ in self.own[row]]
        scale = math.sqrt(stdev(tokens) ** 2 + 1e-8)
        return [(per_row[row] - fmean(tokens)) / scale if row in rows else 0.0 for row in range(len(per_row))]

    def returns(self, gamma=1.0):
        result = torch.zeros(len(self.own), len(self.mask[0]), dtype=torch.float64)
        for row, own in enumerate(self.own):
            carry = 0.0
            for t in reversed(own):
                carry = result[row, t] = self.rewards[row][t] + gamma * carry
        return result


def passk(score, group, row):
    first, second = sorted(group)[-1:-3:-1]
    return (first - second) / (stdev(group) + 1e-6) if score == first else 0.0


def opo(reference):
    def formula(score, group, row):
        lengths = [len(reference.own[j]) for j in reference.members(row)]
        return score - sum(n * s for n, s in zip(lengths, group, strict=True)) / sum(lengths)

    return reference.outcome(formula)


def gpg(reference, f_norm=1.0):
    alpha = len(reference.scored) / sum(reference.scores[row] != 0 for row in reference.scored)
    return reference.outcome(lambda s, group, row: alpha * (s - fmean(group)) / f_norm)


def gdpo(reference, weights):
    total = [0.0] * len(reference.own)
    for key, weight in weights.items():
        part = reference.inputs.components[key].tolist()
        part = reference.outcome(lambda c, group, row: (c - fmean(group)) / (stdev(group) + 1e-6), part)
        total = [a + weight * b for a, b in zip(total, part, strict=True)]
    return reference.whitened(total)


OUTCOMES = {
    "grpo": lambda r: r.outcome(lambda s, group, row: (s - fmean(group)) / (stdev(group) + 1e-6)),
    "dr_grpo": lambda r: r.outcome(lambda s, group, row: s - fmean(group)),
    "grpo_passk": lambda r: r.outcome(passk),
    "gdpo": lambda r: gdpo(r, {"accuracy": 1.0, "format": 1.0}),
    "rloo": lambda r: r.outcome(lambda s, group, row: s - (sum(group) - s) / (len(group) - 1)),
    "reinforce_plus_plus_baseline": lambda r: r.whitened(r.outcome(lambda s, group, row: s - fmean(group))),
    "opo": opo,
    "gpg": gpg,
    "maxrl": lambda r: r.outcome(lambda s, group, row: (s - fmean(group)) / fmean(group)),
}


COMPARING = [*OUTCOMES, "optimal_token_baseline"]
NAMES = [*COMPARING, "reinforce_plus_plus", "remax"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome_estimators_are_the_papers_formula(name, shape):
    inputs = batch(shape)
    reference = Reference(inputs)
    advantages, returns = estimate(name, inputs)
    assert torch.allclose(advantages, reference.over_tokens(OUTCOMES[name](reference)), rtol=1e-10, atol=1e-10)
    assert returns is advantages


def test_options_of_outcome_estimators():
    inputs = batch()
    reference = Reference(inputs)
    expected = {
        ("grpo", ("norm_adv_by_std_in_grpo", False)): OUTCOMES["dr_grpo"](reference),
        ("grpo_passk", ("norm_adv_by_std_in_grpo", False)): reference.outcome(
            lambda s, group, row: passk(s, group, row) * (stdev(group) + 1e-6)
        ),
        ("gpg", ("f_norm", 4.0)): gpg(reference, 4.0),
    }
    for (name, (option, value)), per_row in expected.items():
        advantages = estimate(name, inputs, **{option: value}).advantages
        assert torch.allclose(advantages, reference.over_tokens(per_row), rtol=1e-10, atol=1e-10), name


def test_gdpo_takes_the_components_and_weights_that_are_asked_for():
    inputs = batch()
    reference = Reference(inputs)
    weights = {"format": 0.5, "accuracy": 2.0}
    result = estimate("gdpo", inputs, gdpo_reward_keys=list(weights), gdpo_reward_weights=list(weights.values()))
    assert torch.allclose(result.advantages, reference.over_tokens(gdpo(reference, weights)), atol=1e-10)
    alone = estimate("gdpo", inputs, gdpo_reward_keys=["format"])
    assert torch.allclose(alone.advantages, reference.over_tokens(gdpo(reference, {"format": 1.0})), atol=1e-10)


def test_gdpo_refuses_components_that_do_not_exist():
    inputs = batch()
    with pytest.raises(RunError, match=r"'style', which no scorer returns; known: accuracy, format"):
        estimate("gdpo", inputs, gdpo_reward_keys=["accuracy", "style"])
    with pytest.raises(RunError, match=r"known: none, because no scorer returns numbers beside 'score'$"):
        estimate("gdpo", AdvantageInputs(inputs.rewards, inputs.response_mask, inputs.group_ids))
    with pytest.raises(ConfigError, match="2 numbers for 1"):
        REGISTRY.select({"name": "gdpo", "gdpo_reward_keys": ["a"], "gdpo_reward_weights": [1.0, 2.0]})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_reinforce_plus_plus_whitens_the_discounted_returns(shape, gamma):
    inputs = batch(shape)
    returns = Reference(inputs).returns(gamma)
    tokens = returns[inputs.response_mask].tolist()
    expected = (returns - fmean(tokens)) / math.sqrt(stdev(tokens) ** 2 + 1e-8) * inputs.response_mask
    result = estimate("reinforce_plus_plus", inputs, gamma=gamma)
    assert torch.allclose(result.advantages, expected, atol=1e-10)
    assert torch.allclose(result.returns, returns, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_remax_subtracts_the_greedy_score_from_the_return(shape):
    inputs = batch(shape)
    returns = Reference(inputs).returns()
    result = estimate("remax", inputs)
    assert torch.allclose(result.advantages, (returns - inputs.greedy_scores[:, None]) * inputs.response_mask)
    assert torch.allclose(result.returns, returns, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("handle_zero_tail", [True, False])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal terms", "rollout weights"])
def test_the_optimal_token_baseline_is_the_energy_weighted_return_at_each_token(shape, handle_zero_tail, weighted):
    inputs = batch(shape)
    if weighted:
        random = torch.Generator().manual_seed(3)
        weights = 2 * torch.rand(10, 6, generator=random, dtype=torch.float64)
        weights[torch.rand(10, 6, generator=random) < 0.2] = 0  # rejected tokens
        inputs = dataclasses.replace(inputs, rollout_weights=weights)
    reference = Reference(inputs)
    returns, expected = reference.returns(), torch.zeros(10, 6, dtype=torch.float64)

    def energy(row, k):
        tokens = reference.own[row][: k + 1]
        pi = {t: math.exp(inputs.log_probs[row, t]) for t in tokens}
        correction = {t: float(inputs.rollout_weights[row, t]) ** 2 if weighted else 1.0 for t in tokens}
        return sum(correction[t] * (1 - 2 * pi[t] + float(inputs.sum_pi_squared[row, t])) for t in tokens)

    for row in reference.scored:
        for k, t in enumerate(reference.own[row]):
            alive = [j for j in reference.members(row) if len(reference.own[j]) > k]
            weights = [energy(j, k) for j in alive]
            total = sum(w * float(returns[j, reference.own[j][k]]) for w, j in zip(weights, alive, strict=True))
            baseline = total / sum(weights) if sum(weights) else 0.0
            if len(alive) == 1 and handle_zero_tail:
                baseline = 0.0
            if len(reference.members(row)) > 1:
                expected[row, t] = returns[row, t] - baseline
    result = estimate("optimal_token_baseline", inputs, handle_zero_tail=handle_zero_tail)
    assert torch.allclose(result.advantages, expected, atol=1e-10)
    assert torch.allclose(result.returns, returns, atol=1e-12)


@pytest.mark.parametrize("name", COMPARING)
def test_a_group_of_one_and_a_group_without_a_score_get_zero(name):
    advantages = estimate(name, batch()).advantages
    assert (advantages[[3, 6, 8, 9]] == 0).all()
    assert (advantages[[0, 1, 2, 4, 5, 7]] != 0).any()


@pytest.mark.parametrize("name", [name for name in COMPARING if name != "gdpo"])
def test_equal_scores_of_a_group_give_zero(name):
    mask = torch.ones(6, 4, dtype=torch.bool)
    rewards = torch.zeros(6, 4)
    rewards[:, -1] = 0.7
    ids, some = torch.tensor([0, 1, 0, 1, 0, 1]), torch.full((6, 4), 0.3)
    inputs = AdvantageInputs(rewards, mask, ids, log_probs=some.log(), sum_pi_squared=some)
    assert torch.allclose(estimate(name, inputs).advantages, torch.zeros(6, 4), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_float32_is_kept_and_nothing_stands_outside_the_mask(name, shape):
    inputs, exact = batch(shape, torch.float32), estimate(name, batch(shape))
    before = inputs.rewards.clone(), inputs.log_probs.clone(), inputs.sum_pi_squared.clone()
    for result, expected in zip(estimate(name, inputs), exact, strict=True):
        assert result.dtype == torch.float32 and not result.requires_grad
        assert (result[~inputs.response_mask] == 0).all()
        assert torch.allclose(result.double(), expected, rtol=1e-3, atol=1e-4)
    for kept, now in zip(before, (inputs.rewards, inputs.log_probs, inputs.sum_pi_squared), strict=True):
        assert torch.equal(kept, now)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_a_score_gives_zero(name):
    inputs = batch()
    nothing, mask = torch.zeros(10, 6), torch.zeros(10, 6, dtype=torch.bool)
    empty = AdvantageInputs(
        nothing, mask, inputs.group_ids, None, torch.ones(10), nothing, nothing, {"accuracy": torch.zeros(10)}
    )
    assert all((tensor == 0).all() for tensor in estimate(name, empty))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_registry_says(name):
    entry = REGISTRY.get(name)
    more = {"remax": {"greedy_baseline"}, "optimal_token_baseline": {"sum_pi_squared"}}
    assert entry.needs == ({"groups"} if name in COMPARING else set()) | more.get(name, set())
    assert entry.summary
