"""Streams of rollouts over twelve prompts."""

import pytest

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.sampler import PromptSampler
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.stream import Stream
from streams import PROMPTS, SEEDS, TOKENIZER, Engine, Reward


@pytest.fixture
def stream():
    """``stream(engine, max_staleness=0, total_steps=5, …)`` over twelve prompts of tokens 1 to 12, two to a step."""
    opened = []

    def make(
        engine=None,
        *,
        most=None,
        reward=None,
        greedy=False,
        keep=None,
        state=None,
        size=2,
        total_steps=5,
        on_finished=None,
        player=None,
        max_error_rate=0.0,
        **trainer,
    ):
        config = TrainConfig(ModelConfig("x"), rollout=RolloutConfig(n=2))
        config.data = DataConfig(train_batch_size=size, max_response_length=6)
        config.reward.max_error_rate = max_error_rate
        for name, value in trainer.items():
            setattr(config.trainer, name, value)
        prompts = [Prompt(index, (1, 1 + index), [], "s", "", {}) for index in range(PROMPTS)]
        sampler = PromptSampler(PROMPTS, size, shuffle=False, seed=0)
        if state is not None:
            sampler.load_state_dict(state.sampler)
        queue = RequestQueue((engine or Engine()).generate, most)
        player = player or Player(queue, TOKENIZER, reward or Reward(), 6)
        sampling = SamplingParams(6, n=2, temperature=0.7)
        options = {"batch_filter": keep, "greedy_baseline": greedy, "total_steps": total_steps}
        options |= {"finished": state.finished if state else (), "vocabulary": 100, "on_finished": on_finished}
        opened.append(Stream(config, player, prompts, sampler, SEEDS, sampling, **options))
        opened[-1].config, opened[-1].prompts = config, prompts
        return opened[-1]

    yield make
    for each in opened:
        each.close()
