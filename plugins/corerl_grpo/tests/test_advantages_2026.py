"""TPO, A2PO and the batch's deviation against plain Python, the gradient of TPO's cross-entropy, and the preset."""

import math
from statistics import fmean, pstdev, stdev

import pytest
import torch

from corerl.cli.common import load_train_config
from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.errors import ConfigError, RunError
from corerl.objective import loss_weights
from corerl.plugins import Plugins
from corerl_grpo.losses.gpg import gpg
from corerl_grpo.optimal_value import optimal_value

REGISTRIES = Plugins().registries
GROUPS = [1, 0, 1, 3, 0, 1, 2, 0, 2, 4, 4]
SCORES = [0.2, 1.0, 0.9, 0.5, 0.0, 0.4, 1.0, 0.5, 0.0, 0.7, 0.7]
LENGTHS = [3, 1, 2, 4, 2, 3, 1, 2, 0, 2, 3]
"""row 8 has no score, so groups 3 and 2 have one scored response; group 4 has equal scores"""


def estimate(name, inputs, **options):
    return REGISTRIES.advantage_estimators.select({"name": name, **options}).load()(inputs).advantages


def batch(**more):
    steps, lengths = torch.arange(4), torch.tensor(LENGTHS)
    mask = steps < lengths[:, None]
    rewards = torch.where(steps == lengths[:, None] - 1, torch.tensor(SCORES, dtype=torch.float64)[:, None], 0.0)
    log_probs = -2 * torch.rand(11, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return AdvantageInputs(rewards, mask, torch.tensor(GROUPS), log_probs=torch.where(mask, log_probs, 0.0), **more)


def members():
    """The scored rows of each group with two or more."""
    groups = [[i for i in range(11) if GROUPS[i] == g and LENGTHS[i]] for g in range(5)]
    return [rows for rows in groups if len(rows) > 1]


def softmax(values):
    largest = max(values)
    exponentials = [math.exp(value - largest) for value in values]
    return [each / math.fsum(exponentials) for each in exponentials]


def targets(inputs, rows, eta):
    """(p, q) of a group."""
    own = [float(inputs.log_probs[i].sum()) for i in rows]
    scores = [SCORES[i] for i in rows]
    spread = pstdev(scores)
    u = [(score - fmean(scores)) / spread if spread else 0.0 for score in scores]
    return softmax(own), softmax([x + y / eta for x, y in zip(own, u, strict=True)])


@pytest.mark.parametrize("eta", [0.25, 1.0, 4.0])
def test_tpo_is_the_size_of_the_group_times_target_minus_old_probability(eta):
    inputs = batch()
    expected = [0.0] * 11
    for rows in members():
        for i, p, q in zip(rows, *targets(inputs, rows, eta), strict=True):
            expected[i] = len(rows) * (q - p)
    advantages = estimate("tpo", inputs, eta=eta)
    wanted = torch.where(inputs.response_mask, torch.tensor(expected, dtype=torch.float64)[:, None], 0.0)
    assert torch.allclose(advantages, wanted, rtol=1e-12, atol=1e-14)
    assert not advantages[[9, 10]].any() and not advantages[3].any()


def test_the_first_update_with_tpo_has_the_gradient_of_the_papers_cross_entropy():
    """Equation 3, a mean over the prompts that are compared, by autograd through log_softmax."""
    inputs = batch()
    rows = [i for group in members() for i in group]
    log_probs = inputs.log_probs.clone().requires_grad_()
    cross_entropy = 0.0
    for group in members():
        _, q = targets(inputs, group, 1.0)
        sums = torch.where(inputs.response_mask, log_probs, 0.0)[group].sum(1)
        cross_entropy = cross_entropy - (torch.tensor(q, dtype=torch.float64) * sums.log_softmax(0)).sum()
    (wanted,) = torch.autograd.grad(cross_entropy / len(members()), log_probs)

    advantages, mask = estimate("tpo", inputs)[rows], inputs.response_mask[rows]
    leaf = inputs.log_probs[rows].requires_grad_()
    output = gpg(PolicyLossInputs(leaf, leaf.detach(), advantages, mask)).terms
    weights = loss_weights(mask, "seq-mean-token-sum") * len(rows)
    sizes = torch.tensor([len(next(each for each in members() if i in each)) for i in rows])
    (found,) = torch.autograd.grad((output * weights / sizes[:, None] / len(members())).sum(), leaf)
    assert torch.allclose(found, wanted[rows], rtol=1e-10, atol=1e-14)


def test_tpo_is_not_lost_in_long_responses():
    """Sums of log-probs of -4,000 and -4,001; the likelier is the worse."""
    mask = torch.ones(2, 1000, dtype=torch.bool)
    log_probs = torch.full((2, 1000), -4.0)
    log_probs[1, 0] -= 1
    rewards = torch.zeros(2, 1000)
    rewards[1, -1] = 1.0
    inputs = AdvantageInputs(rewards, mask, torch.zeros(2, dtype=torch.int64), log_probs=log_probs)
    p, q = softmax([1.0, 0.0]), softmax([0.0, 1.0])
    assert estimate("tpo", inputs)[:, 0].tolist() == pytest.approx([2 * (q[0] - p[0]), 2 * (q[1] - p[1])], rel=1e-5)


@pytest.mark.parametrize("beta", [0.05, 0.5, 5.0])
def test_a2po_group_subtracts_the_log_mean_exp_of_the_group(beta):
    inputs, expected = batch(), [0.0] * 11
    for rows in members():
        value = beta * math.log(fmean(math.exp(SCORES[i] / beta) for i in rows))
        for i in rows:
            expected[i] = SCORES[i] - value
    advantages = estimate("a2po_group", inputs, beta=beta)
    wanted = torch.where(inputs.response_mask, torch.tensor(expected, dtype=torch.float64)[:, None], 0.0)
    assert torch.allclose(advantages, wanted, rtol=1e-10, atol=1e-12)


def test_a2po_subtracts_the_component_also_from_a_response_without_a_group():
    values = torch.linspace(0, 1, 11, dtype=torch.float64)
    inputs = batch(components={"best": values})
    advantages = estimate("a2po", inputs, value_key="best")
    wanted = torch.where(inputs.response_mask, (torch.tensor(SCORES, dtype=torch.float64) - values)[:, None], 0.0)
    assert torch.allclose(advantages, wanted, rtol=1e-12, atol=1e-14)


def test_a2po_names_the_component_that_no_scorer_returns():
    with pytest.raises(RunError, match="component 'best', which no scorer returns; known: accuracy"):
        estimate("a2po", batch(components={"accuracy": torch.zeros(11)}), value_key="best")
    with pytest.raises(ConfigError, match="value_key"):
        estimate("a2po", batch())


def test_the_scorer_of_the_optimal_value_reads_the_row():
    assert optimal_value("any", None, "source", {"optimal_value": 0.25}) == 0.25
    with pytest.raises(KeyError):
        optimal_value("any", None, "source", {})


def test_the_deviation_is_that_of_the_compared_responses_of_the_batch():
    centred = {i: SCORES[i] - fmean(SCORES[j] for j in rows) for rows in members() for i in rows}
    deviation = stdev(centred.values()) + 1e-6
    expected = [centred.get(i, 0.0) / deviation for i in range(11)]
    inputs = batch()
    wanted = torch.where(inputs.response_mask, torch.tensor(expected, dtype=torch.float64)[:, None], 0.0)
    assert torch.allclose(estimate("grpo_batch_std", inputs), wanted, rtol=1e-12, atol=1e-14)


def test_scalerl_is_a_config_and_sets_nothing_that_depends_on_the_task():
    written = ["preset=scalerl", "model.path=m", "data.train_files=[t.parquet]"]
    config, parts, _ = load_train_config(None, written)
    assert parts.adv_estimator.entry.name == "grpo_batch_std"
    assert (parts.policy_loss.options.clip_ratio_low, parts.policy_loss.options.clip_ratio_high) == (1.0, 4.0)
    assert (config.actor.loss_agg_mode, config.actor.zero_advantage) == ("prompt-mean", "drop")
    assert config.algorithm.rollout_correction.bypass_mode and not config.algorithm.rollout_correction.acts
    assert (config.trainer.max_staleness, parts.kl_loss, parts.kl_penalty) == (8, None, None)
    values = REGISTRIES.presets.get("scalerl").load()()
    assert "optim" not in values["actor"] and not {"model", "data", "rollout"} & set(values)
