"""Batches by hand, and a config whose parts are made up."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.config.parts import resolve_parts
from corerl.config.schema import ModelConfig, PluginsConfig, TrainConfig
from corerl.data.prompts import Prompt
from corerl.plugins import load_plugins
from corerl.registry.reward_managers import RewardResult
from corerl.registry.rollout_backends import Completion
from corerl.trainer.collection import ScoredRollouts


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


PLUGIN = """
from corerl import hookimpl

def nothing(*arguments, **options):
    raise AssertionError("not called here")

@hookimpl
def register_advantage_estimators(register):
    register("mine", nothing)

@hookimpl
def register_policy_losses(register):
    register("mine", nothing)

@hookimpl
def register_training_strategies(register):
    register("mine", nothing)

@hookimpl
def register_rollout_backends(register):
    register("mine", nothing)

class Lengths:
    # scores a response by its length, where its scorer says 1, and remembers that it was closed

    closed = 0

    def __init__(self, scorers, *, num_workers, timeout):
        self.scorers, self.num_workers, self.timeout = scorers, num_workers, timeout

    def score(self, requests):
        from corerl.registry.reward_managers import RewardResult

        return [
            RewardResult(
                self.scorers[each.data_source](each.response, each.ground_truth, each.data_source, each.extra_info)
                * len(each.response),
                {"limit": each.max_response_length},
            )
            for each in requests
        ]

    def close(self):
        Lengths.closed += 1

@hookimpl
def register_reward_managers(register):
    register("mine", Lengths)

def one(response, ground_truth, data_source, extra_info):
    return 1.0

@hookimpl
def register_scorers(register):
    register("one", one, data_sources=["acme/*"])
"""


@pytest.fixture
def made_up(tmp_path: Path, tiny_tokenizer_dir: Path) -> Callable[[], SimpleNamespace]:
    """``made_up()``: a config all of whose parts are ``mine``, of a file; its parts and plugins. No model is there."""
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)

    def make() -> SimpleNamespace:
        config = TrainConfig(model=ModelConfig(path=str(tiny_tokenizer_dir)), plugins=PluginsConfig(load=[str(file)]))
        config.algorithm.adv_estimator = config.actor.policy_loss = config.actor.strategy = "mine"
        config.rollout.name = config.reward.manager = "mine"
        config.actor.device, config.trainer.output_dir = "cpu", str(tmp_path / "runs")
        plugins = load_plugins((str(file),), ())
        return SimpleNamespace(config=config, plugins=plugins, parts=resolve_parts(config, plugins.registries))

    return make
