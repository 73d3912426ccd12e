"""``bitwise``: log-probs of vLLM and those of a strategy are equal, to the last bit."""

import random

import pytest
import torch
from vllm_engine import PYTHON, WITHOUT, one_more_engine

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.tiny_model import tiny_model
from corerl_torch.supervised import SupervisedObjective
from equal_bits import TEMPERATURE, batch, difference, rollouts

pytestmark = [
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(PYTHON is None, reason=WITHOUT),
    one_more_engine,
]

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


def test_log_probs_are_equal_after_updates_and_in_any_batch(backend, strategy, dtype):
    chance, strategy, plain = random.Random(3), strategy(bitwise=True), strategy()
    for version in range(UPDATES):
        sent = strategy.weights(torch.bfloat16 if dtype == "bf16" else None)
        backend.update_weights(((name, each.clone()) for name, each in sent), version)
        rows = rollouts(backend, chance)
        assert len(rows) > 20
        for some in (rows, chance.sample(rows, 5), rows[:1]):
            experience = batch(some)
            assert difference(strategy, experience) == 0
        assert version > 0 or difference(plain, batch(rows)) > 0
        strategy.update(batch(rows), SupervisedObjective())
