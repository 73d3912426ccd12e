"""``bitwise``: log-probs of vLLM and those of a strategy are equal, to the last bit."""

import asyncio
import dataclasses
import random

import pytest
import torch
from vllm_engine import PYTHON, WITHOUT, one_more_engine

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.tiny_model import tiny_model
from corerl_torch.supervised import SupervisedObjective

pytestmark = [
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(PYTHON is None, reason=WITHOUT),
    one_more_engine,
]

TEMPERATURE = 0.7
PROMPTS, SAMPLES = 9, 3
UPDATES = 2


@pytest.fixture(scope="module")
def dtype(device):
    return "bf16" if device == "cuda" else "fp32"


@pytest.fixture(scope="module")
def backend(start, dtype):
    return start(model={"dtype": dtype}, bitwise=True, load_format="dummy", python=PYTHON)


@pytest.fixture(scope="module")
def strategy(device, dtype):
    model = ModelConfig(path=str(tiny_model()), dtype=dtype)
    spec = StrategySpec(
        model, device, MicroBatching(max_tokens=150), OptimConfig(lr=1e-2), total_steps=10, temperature=TEMPERATURE
    )

    def make(**options):
        return FsdpStrategy(spec, FsdpOptions(share_prefixes=False, logits_chunk_size=37, **options))

    return make


def rollouts(backend, chance, vocabulary):
    requests = [
        GenerationRequest(
            f"r{chance.random()}",
            [chance.randrange(2, vocabulary) for _ in range(chance.randint(1, 60))],
            SamplingParams(30, SAMPLES, temperature=TEMPERATURE, seed=chance.randrange(999), ignore_eos=True),
        )
        for _ in range(PROMPTS)
    ]
    answers = asyncio.run(backend.generate(requests))
    return [
        (request.prompt_ids, each.token_ids, each.log_probs)
        for request, completions in zip(requests, answers, strict=True)
        for each in completions
    ]


def batch(rows):
    prompts, responses, log_probs = zip(*rows, strict=True)
    experience = collate(prompts, responses, [0] * len(rows), log_probs=log_probs)
    mask = experience.response_mask
    return dataclasses.replace(experience, loss_weights=mask / mask.sum())


def difference(strategy, experience):
    """Largest |log pi_rollout - log pi_old|."""
    ours = strategy.forward(experience, ["log_probs"]).log_probs
    return float((ours - experience.rollout_log_probs).abs().max())


def test_log_probs_are_equal_after_updates_and_in_any_batch(backend, strategy, dtype):
    chance, strategy, plain = random.Random(3), strategy(bitwise=True), strategy()
    for version in range(UPDATES):
        sent = strategy.weights(torch.bfloat16 if dtype == "bf16" else None)
        backend.update_weights(((name, each.clone()) for name, each in sent), version)
        rows = rollouts(backend, chance, 50)
        assert len(rows) == PROMPTS * SAMPLES
        for some in (rows, chance.sample(rows, 5), rows[:1]):
            experience = batch(some)
            assert difference(strategy, experience) == 0
        assert version > 0 or difference(plain, batch(rows)) > 0
        strategy.update(batch(rows), SupervisedObjective())
