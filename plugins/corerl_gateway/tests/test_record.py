"""Episodes over HTTP with a real engine: rows, masks and log-probs are those of the policy."""

import asyncio
import random

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from corerl.batch.rollouts import Rollouts
from corerl.contracts.agents import AgentResult
from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data import load_tokenizer
from corerl.data.prompts import Prompt
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Services
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.worker import RolloutWorker
from corerl_agents.chats import make_chats
from corerl_gateway.plugin import make_endpoint
from corerl_testing.tiny_model import END, tiny_model

ROOM = 600


class Talk:
    """An agent that chats with itself over HTTP: turns, retries, samples, cut turns, streams, each at random."""

    async def run(self, task, model):
        chance, messages = random.Random(task.seed), [{"role": "user", "content": f"ünï {task.seed}"}]
        headers = {"Authorization": f"Bearer {model.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for turn in range(6):
                body = {
                    "model": "x",
                    "messages": messages,
                    "max_tokens": chance.randint(1, 12),
                    "n": chance.randint(1, 2),
                }
                async with session.post(model.base_url + "/chat/completions", json=body) as response:
                    assert response.status == 200, await response.text()
                    choices = (await response.json())["choices"]
                if chance.random() < 0.3:
                    stream = session.post(model.base_url + "/chat/completions", json={**body, "stream": True})
                    async with stream as response:
                        assert (await response.read()).endswith(b"[DONE]\n\n")
                if chance.random() < 0.8:
                    said = chance.choice(choices)["message"]
                    messages = [*messages, said, {"role": "user", "content": f"turn {turn}"}]
        return AgentResult(1.0)


@pytest.fixture(scope="module")
def played():
    """(rollouts of eight episodes that overlap, requests and samples of the engine)."""
    config = TrainConfig(ModelConfig(str(tiny_model())), rollout=RolloutConfig(name="hf"))
    worker, engine = RolloutWorker(config), {}

    async def generate(requests, on_finished):
        def finished(position, completions):
            assert requests[position].request_id not in engine
            engine[requests[position].request_id] = (list(requests[position].prompt_ids), *completions)
            on_finished(position, completions)

        await worker.generate(requests, finished)

    async def main():
        tokenizer = load_tokenizer(config.model)
        services = Services(make_chats(config, tokenizer), make_endpoint(config))
        episodes = AgentEpisodes(RequestQueue(generate), tokenizer, Talk(), services, 64, 120.0)
        groups = [
            Group(
                Prompt(seed, (1,), [], "acme", "", {}),
                seed,
                SamplingParams(ROOM, stop_token_ids=(END,)),
                f"g{seed}",
                "b",
                0,
            )
            for seed in range(8)
        ]
        try:
            return await asyncio.gather(*(episodes.play(group, 0) for group in groups))
        finally:
            episodes.close()

    rollouts = asyncio.run(asyncio.wait_for(main(), 120))
    worker.close()
    return rollouts, engine


def rows(rollouts: Rollouts):
    """(prompt ids, completion, mask) of every row of an episode."""
    [prompt], [completion], [episode] = rollouts.prompts, rollouts.completions, rollouts.episodes
    yield prompt.token_ids, completion, episode.response_mask
    for branch in episode.branches:
        yield branch.prompt_ids, branch.completion, branch.response_mask


def test_every_sampled_token_is_trained_once_and_no_other(played):
    everything, engine = played
    for seed, rollouts in enumerate(everything):
        own = [value for name, value in engine.items() if name.startswith(f"g{seed}.")]
        assert len(own) >= 6 and len(list(rows(rollouts))) >= 2
        left = [(list(ids), list(completion.token_ids), list(completion.log_probs)) for ids, completion in own]
        for prompt_ids, completion, mask in rows(rollouts):
            whole = [*prompt_ids, *completion.token_ids]
            place = 0
            while place < len(mask):
                if not mask[place]:
                    place += 1
                    continue
                before = whole[: len(prompt_ids) + place]
                found = next(
                    each
                    for each in left
                    if each[0] == before
                    and each[1] == list(completion.token_ids[place : place + len(each[1])])
                    and all(mask[place : place + len(each[1])])
                )
                assert found[2] == list(completion.log_probs[place : place + len(found[1])])
                left.remove(found)
                place += len(found[1])
        assert left == []


def test_recorded_log_probs_are_those_of_the_trainer(played):
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    count = 0
    for rollouts in played[0]:
        for prompt_ids, completion, mask in rows(rollouts):
            ids = torch.tensor([[*prompt_ids, *completion.token_ids]])
            with torch.no_grad():
                all_log_probs = model(ids).logits[0, len(prompt_ids) - 1 : -1].log_softmax(-1)
            own = all_log_probs.gather(1, ids[0, len(prompt_ids) :, None])[:, 0]
            trained = torch.tensor(mask)
            recorded = torch.tensor(completion.log_probs)
            assert torch.allclose(own[trained], recorded[trained], rtol=0, atol=1e-5)
            count += int(trained.sum())
    assert count > 300
