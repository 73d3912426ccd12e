"""Responses by hand."""

from collections.abc import Callable

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.rollout.scored import ScoredRollouts


@pytest.fixture(scope="session")
def scored_rollouts() -> Callable[..., ScoredRollouts]:
    """``scored_rollouts([score, …], n=1, lengths=None, version=0)``: n responses to each prompt, with their scores.

    Prompt g has the token ids (1, 10 + g). Response i has ``lengths[i]`` tokens (2 unless given), the first of them
    20 + i, each with log-prob -0.5, and the text "text i". A score of None is a scorer that failed.
    """

    def make(scores, n=1, lengths=None, version=0):
        count = len(scores)
        groups = [row // n for row in range(count)]
        prompts = [Prompt(group, (1, 10 + group), [], "acme/sums", str(group), {}) for group in groups]
        completions = [
            Completion([20 + row] + [5] * (length - 1), [-0.5] * length, "stop", version)
            for row, length in enumerate(lengths or [2] * count)
        ]
        results = [RewardResult(score, error=None if score is not None else "boom") for score in scores]
        texts = [f"text {row}" for row in range(count)]
        return ScoredRollouts(Rollouts(prompts, completions, texts, groups), results)

    return make
