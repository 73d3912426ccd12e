"""Score centering, summed over all sequences of a small policy in float64."""

import itertools
import math

import pytest
import torch

from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutConfig, RolloutCorrectionConfig, TrainConfig
from corerl.contracts.experience import collate
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.contracts.token_outputs import TokenOutputs
from corerl_correction.centering import ScoreCentering, coefficients
from corerl_correction.correction import correct
from corerl_correction.rules import violations

VOCABULARY, LENGTH = 6, 2

SEQUENCES = list(itertools.product(range(VOCABULARY), repeat=LENGTH))

NONE, TRUNCATE = RolloutCorrectionConfig(rollout_is="none"), RolloutCorrectionConfig(rollout_is="token")

CLIP = RolloutCorrectionConfig(rollout_is="token", rollout_is_mode="clip", rollout_is_threshold=1.2)

BIASES = {
    ("none", 0): (2.479, 1.058, 0.880),
    ("none", 1): (0.966, 0.878, 0.880),
    ("token", 0): (0.974, 0.829, 0.717),
    ("token", 1): (0.710, 0.714, 0.717),
}
"""of updates without the term, with 3 of the 6 tokens, with all; by rollout_is and baseline"""

CONFIGS = [NONE, RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.1), CLIP]


class Problem:
    """A trainer's policy, an engine's and a reward for each sequence; logits by prefix: the first token, or none."""

    def __init__(self, seed, noise=0.5):
        draw = torch.Generator().manual_seed(seed)
        self.theta = torch.randn(1 + VOCABULARY, VOCABULARY, generator=draw, dtype=torch.float64).requires_grad_()
        shift = noise * torch.randn(1 + VOCABULARY, VOCABULARY, generator=draw, dtype=torch.float64)
        self.log_q = (self.theta.detach() + shift).log_softmax(dim=-1)
        self.rewards = torch.rand(len(SEQUENCES), generator=draw, dtype=torch.float64)

    def states(self, sequence):
        return [0, 1 + sequence[0]]

    def probability(self, log_probs, sequence):
        return sum(log_probs[state, token] for state, token in zip(self.states(sequence), sequence, strict=True)).exp()

    def exact(self):
        """The gradient of the expected reward of the trainer's policy."""
        log_p = self.theta.log_softmax(dim=-1)
        value = sum(
            self.probability(log_p, each) * reward for each, reward in zip(SEQUENCES, self.rewards, strict=True)
        )
        return torch.autograd.grad(value, self.theta)[0]

    def update(self, config, advantages, top):
        """The expected update under the engine's sequences: ``top`` recorded tokens; 0: without centering."""
        log_p, loss = self.theta.log_softmax(dim=-1), 0.0
        log_q, likely = self.log_q.topk(max(top, 1), dim=-1)
        for sequence, advantage in zip(SEQUENCES, advantages, strict=True):
            probability = self.probability(self.log_q, sequence)
            for state, token in zip(self.states(sequence), sequence, strict=True):
                own, engine = log_p[state, token], self.log_q[state, token]
                given = correct(own.detach().view(1, 1), engine.view(1, 1), torch.ones(1, 1, dtype=torch.bool), config)
                weight = 1.0 if given.weights is None else given.weights[0, 0]
                loss = loss - probability * weight * advantage * own
                if top:
                    chosen = log_p[state, likely[state]]
                    term = (coefficients(chosen.detach(), log_q[state], config) * chosen).sum()
                    loss = loss + probability * advantage * term
        return -torch.autograd.grad(loss, self.theta)[0]


@pytest.mark.parametrize("config", CONFIGS, ids=["none", "truncate", "clip"])
def test_a_reward_that_all_sequences_have_moves_nothing(config):
    """The exact gradient is 0. Without the term the policy drifts. One token outside of H is exact too."""
    problem = Problem(0)
    ones = [1.0] * len(SEQUENCES)
    drift = problem.update(config, ones, top=0)
    assert drift.norm() > 0.02
    for top in (VOCABULARY, VOCABULARY - 1):
        assert problem.update(config, ones, top=top).norm() < 1e-12
    some = problem.update(config, ones, top=3).norm()
    assert some < 0.7 * drift.norm()


@pytest.mark.parametrize("config", CONFIGS, ids=["none", "truncate", "clip"])
def test_the_baseline_does_not_matter(config):
    problem = Problem(1)
    given, shifted = (problem.update(config, problem.rewards + shift, top=VOCABULARY) for shift in (0.0, 5.0))
    torch.testing.assert_close(given, shifted, rtol=0, atol=1e-12)


def test_the_term_is_zero_if_both_policies_are_equal_and_with_untruncated_weights():
    log_p = torch.randn(7, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    for top in (1, 3, VOCABULARY):
        for config in CONFIGS:
            assert coefficients(log_p[:, :top], log_p[:, :top], config).abs().max() < 1e-12
    problem = Problem(2)
    untruncated = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1e9)
    plain, centered = (problem.update(untruncated, problem.rewards, top=top) for top in (0, 3))
    torch.testing.assert_close(plain, centered, rtol=0, atol=1e-12)


def test_padding_has_no_coefficient():
    log_q = torch.tensor([[0.5, 0.3]], dtype=torch.float64).log()
    log_p = torch.tensor([[0.4, 0.4]], dtype=torch.float64).log()
    padded = torch.cat([log_q, torch.full((1, 2), -torch.inf)], dim=1), torch.cat([log_p, torch.zeros(1, 2)], dim=1)
    for config in CONFIGS:
        given = coefficients(padded[1], padded[0], config)
        torch.testing.assert_close(given[:, :2], coefficients(log_p, log_q, config))
        assert (given[:, 2:] == 0).all()
    # q(H) = p(H) = 0.8, rho = 1: q - p
    torch.testing.assert_close(coefficients(log_p, log_q, NONE), torch.tensor([[0.1, -0.1]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("config", "baseline", "expected"),
    [
        (NONE, 0.0, BIASES["none", 0]),
        (NONE, 1.0, BIASES["none", 1]),
        (TRUNCATE, 0.0, BIASES["token", 0]),
        (TRUNCATE, 1.0, BIASES["token", 1]),
    ],
)
def test_the_bias_that_is_left(config, baseline, expected):
    """The table of the algorithm's page: mean over 20 problems of |update - exact gradient| / |exact gradient|.

    The advantage is the reward, or the reward less its mean under the engine. The drift is gone in all; the engine's
    prefixes, and the bounds of the weights, still bias the update.
    """
    biases = {0: 0.0, 3: 0.0, VOCABULARY: 0.0}
    for seed in range(20):
        problem = Problem(seed, noise=1.0)
        engine = [problem.probability(problem.log_q, each) for each in SEQUENCES]
        mean = sum(p * reward for p, reward in zip(engine, problem.rewards, strict=True))
        exact = problem.exact()
        for top in biases:
            given = problem.update(config, problem.rewards - baseline * mean, top)
            biases[top] += float((given - exact).norm() / exact.norm()) / 20
    assert list(biases.values()) == pytest.approx(expected, abs=0.01)


def test_the_loss_term_is_the_advantage_times_the_sum_over_the_recorded_tokens():
    batch = collate([[1], [1, 2]], [[3, 4], [5]], [0, 0])
    counts = [[0, 2, 1], [0, 0, 2]]
    log_q = torch.tensor([0.5, 0.25, 0.75, 0.5, 0.125]).log()
    rows = [log_q[:3], log_q[3:]]
    columns = [
        TokenValues(values.numpy(), torch.tensor(count, dtype=torch.int32).numpy())
        for values, count in zip(rows, counts, strict=True)
    ]
    batch.columns["top_log_probs"] = TokenColumn.collate(columns, [3, 3])
    batch.advantages = torch.tensor([[2.0, -1.0], [3.0, 0.0]])
    log_p = torch.tensor([[[0.25, 0.25], [0.5, 1.0]], [[0.5, 0.25], [1.0, 1.0]]]).log().requires_grad_()
    term = ScoreCentering(NONE, 1.0)
    given = term(TokenOutputs(of_logits={"candidate_log_probs": log_p}), batch)
    # rho: 0.25 / 0.5, 0.25 / 0.5, 0.375 / 0.25
    quarter, half = math.log(0.25), math.log(0.5)
    first = 2 * ((0.5 - 0.125) * quarter + (0.25 - 0.125) * quarter)
    last = 3 * ((0.5 - 0.75) * half + (0.125 - 0.375) * quarter)
    torch.testing.assert_close(given, torch.tensor([[first, -(0.75 - 0.25) * half], [last, 0.0]]))
    given.sum().backward()
    assert (log_p.grad[0, 1, 1], log_p.grad[1, 1].abs().max()) == (0, 0)


@pytest.mark.parametrize(
    ("record", "correction", "words"),
    [
        ([], {}, "set rollout.record=[top_log_probs]"),
        (["top_log_probs"], {"rollout_is": "sequence"}, "set rollout_is to token or none, not sequence"),
        (["top_log_probs"], {"rollout_is": "token", "rollout_is_mode": "mask"}, "truncate or clip"),
        (["top_log_probs"], {"rollout_is": "token", "rollout_is_batch_normalize": True}, "batch_normalize to false"),
        (["top_log_probs"], {"bypass_mode": True}, "set rollout_is to token"),
        (["top_log_probs"], {"bypass_mode": True, "rollout_is": "token"}, ""),
        (["top_log_probs"], {}, ""),
    ],
)
def test_options_that_cannot_be_centered_are_refused(record, correction, words):
    algorithm = AlgorithmConfig(rollout_correction=RolloutCorrectionConfig(score_centering=True, **correction))
    config = TrainConfig(ModelConfig("acme"), algorithm=algorithm, rollout=RolloutConfig(record=record))
    errors = [str(error) for error in violations(config)]
    assert len(errors) == bool(words) and all(words in error for error in errors)
