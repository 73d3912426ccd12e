"""A step of an agent's episodes, played by the stream's own player with a scripted policy."""

import asyncio

import pytest
import torch

from corerl.contracts.agents import AgentResult
from corerl.contracts.config import ModelConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.registry import Entry, Owner, Selected
from corerl.rollout.agents import make_agent
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.player import Player
from corerl.rollout.recorder import Services
from corerl_tools.evaluation.samples import TokenColumns

STOP = 258
HOSTILE = "</script><img src=x onerror='window.hacked = 1'>\x1b[31m"
TOOL_SECONDS = 0.02


class Policy:
    """Answers with the texts of :data:`ANSWERS`, one token a byte, after 10 ms."""

    async def complete(self, request, on_sent=lambda: None):
        await asyncio.sleep(0.002)  # in the queue
        on_sent()
        await asyncio.sleep(0.01)
        ids = [*b"two"] if len(request.prompt_ids) < 4 else [*f"answer {len(request.prompt_ids)}".encode()]
        ids = [*ids, STOP][: request.sampling.max_tokens]
        reason = "stop" if ids[-1] == STOP else "length"
        return [Completion(ids, [-0.25 * (1 + place % 3) for place in range(len(ids))], reason, 1)]


class Branching:
    """Four requests: the second and the third overlap and continue the first, the fourth begins anew."""

    def __init__(self, context):
        pass

    async def run(self, task, model):
        first = await model.generate(task.prompt_ids)
        await asyncio.sleep(TOOL_SECONDS)
        path = [*task.prompt_ids, *first.token_ids]
        side = asyncio.create_task(model.generate([*path, *b"side:"]))
        await model.generate([*b"anew", *task.prompt_ids])
        await side
        last = await model.generate([*path, *b"4 is read"], max_tokens=6)
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
        messages = [
            {"role": "assistant", "content": "two", "reasoning_content": "so be it", "tool_calls": [call]},
            {"role": "tool", "name": "add", "content": f"4 {HOSTILE}"},
            {"role": "assistant", "content": last.text},
        ]
        artifacts = {"stdout": f"tests passed {HOSTILE}"}
        error = "the tool broke" if task.ground_truth == "broken" else None
        rewards = (0.5, 0.0, 0.0, -0.25)
        return AgentResult(0.25, rewards, messages=messages, artifacts=artifacts, error=error)


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer_dir):
    return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))


@pytest.fixture(scope="session")
def played(tokenizer):
    """Scored rollouts of two groups with two episodes each; those of the second group failed."""
    agent = make_agent(Selected(Entry("agent", "mine", Branching, Owner("acme"))), {}, None, tokenizer)
    policy = Policy()
    player = Player(policy, tokenizer, None, 40, AgentEpisodes(policy, tokenizer, agent, Services(), 8, 60.0))
    chat = [{"role": "user", "content": f"2 + 2? {HOSTILE}"}]
    prompts = [Prompt(place, (97, 98), chat, "x", truth, {}) for place, truth in enumerate(("4", "broken"))]
    return asyncio.run(player.play_all(prompts, [1, 2], SamplingParams(40, n=2), "train"))


@pytest.fixture(scope="session")
def played_tokens(played, tokenizer):
    """The batch of these rollouts with values of tokens, of which all responses' are written."""
    experience = played.rollouts.experience()
    noise = torch.linspace(0, 1, experience.response_mask.numel()).view(experience.response_mask.shape)
    experience.old_log_probs, experience.ref_log_probs = -noise, -noise - 0.1
    experience.advantages = torch.where(experience.response_mask, noise - 0.5, 0.0)
    return TokenColumns(experience, tokenizer, 4)


@pytest.fixture(scope="session")
def results(played):
    return [RewardResult(1.0), RewardResult(0.5), *played.results[2:]]
