"""``bitwise``: the log-probs of the engine hf and those of the strategies are equal, to the last bit."""

import random

import pytest
import torch

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_torch import bitwise
from corerl_torch.bitwise import attention
from corerl_torch.invariant import on_cpu
from corerl_torch.supervised import SupervisedObjective
from equal_bits import TEMPERATURE, batch, difference, rollouts

CUT = MicroBatching(max_tokens=150)
UPDATES = 2


@pytest.fixture
def threads():
    """Sets torch's number of threads for the test."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


def strategy(model_dir, name="torch", *, packed=True, cut=CUT, **options):
    model = ModelConfig(path=str(model_dir), load_format="dummy")
    spec = StrategySpec(model, "cpu", cut, OptimConfig(lr=1e-2), total_steps=10, temperature=TEMPERATURE)
    options = {"bitwise": True, "use_remove_padding": packed, "logits_chunk_size": 37} | options
    if name == "fsdp":
        return FsdpStrategy(spec, FsdpOptions(**options))
    return SingleDeviceStrategy(spec, TorchOptions(**options))


def engine(model_dir, **options):
    model = ModelConfig(path=str(model_dir), load_format="dummy")
    return HfBackend(model, RolloutConfig(), device="cpu", options=HfOptions(bitwise=True, **options))


@pytest.mark.parametrize("name", ["torch", "fsdp"])
def test_log_probs_of_engine_and_strategy_are_equal_after_updates_and_in_any_batch(request, model_dir, name, threads):
    shown = "[qwen3-fsdp" in request.node.name  # threads that wait for each other take long on busy processors
    chance, packed = random.Random(5), strategy(model_dir, name)
    padded = strategy(model_dir, packed=False, cut=MicroBatching(max_sequences=5))
    engines = engine(model_dir), engine(model_dir, max_batch_size=5, max_prefill_tokens=16)
    for update in range(UPDATES):
        weights = {each: tensor.clone() for each, tensor in packed.weights()}
        padded.model.load_state_dict(weights, strict=False)
        for generating, computing in ((1, 2), (2, 1)) if shown and update else ((1, 1),):
            threads(generating)
            backend = engines[update % 2]
            backend.update_weights(iter(weights.items()), update)
            rows = rollouts(backend, chance, prompts=2 if shown and update else 7)
            threads(computing)
            for _ in range(1 if shown and update else 3):
                some = chance.sample(rows, chance.randint(1, len(rows)))
                assert difference(packed, batch(some)) == 0
                assert difference(padded, batch(some)) == 0
        packed.update(batch(rows), SupervisedObjective())


def test_without_the_option_there_is_a_difference(model_dir):
    """The test above can fail."""
    rows = rollouts(engine(model_dir), random.Random(5))
    assert difference(strategy(model_dir, bitwise=False), batch(rows)) > 0


@pytest.mark.parametrize("packed", [True, False])
def test_the_gradient_is_that_of_the_plain_operations(model_dir, packed):
    rows = rollouts(engine(model_dir), random.Random(1))
    exact = strategy(model_dir, packed=packed)
    plain = strategy(model_dir, packed=packed, bitwise=False)
    gradients = []
    for one in (exact, plain):
        experience = batch(rows)
        outputs = one.token_model(experience, {"log_probs"})
        SupervisedObjective()(outputs, experience).loss.backward()
        gradients.append({name: each.grad for name, each in one.model.named_parameters()})
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_attention_is_that_of_torch_with_padding_on_the_left():
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 70, 8), torch.randn(2, 2, 70, 8), torch.randn(2, 2, 70, 8)
    columns = torch.arange(70)
    mask = columns >= torch.tensor([0, 41])[:, None]
    ours, _ = attention(None, query, key, value, mask)
    seen = mask[:, None, None] & (columns <= columns[:, None])
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1, 41:], theirs[1, 41:])


@pytest.mark.parametrize("function", [on_cpu.silu, on_cpu.gelu_tanh])
def test_activations_are_those_of_torch_and_the_same_at_any_place(function):
    torch.manual_seed(0)
    numbers = 3 * torch.randn(4097)
    whole = function(numbers)
    theirs = torch.nn.functional.silu if function is on_cpu.silu else bitwise_gelu
    torch.testing.assert_close(whole, theirs(numbers))
    assert all(torch.equal(function(numbers[start : start + 7]), whole[start : start + 7]) for start in range(500))


def bitwise_gelu(numbers):
    return torch.nn.functional.gelu(numbers, approximate="tanh")


@pytest.mark.parametrize(
    ("changes", "named"), [({"dtype": "bf16"}, "model.dtype=bf16"), ({"lora_rank": 4}, "model.lora_rank")]
)
def test_a_model_that_rounds_otherwise_is_refused(changes, named):
    with pytest.raises(ConfigError, match=rf"trainer\.bitwise.*{named}"):
        bitwise.check(ModelConfig(path="x", **changes), "cpu")


def test_other_devices_and_compiled_models_are_refused(model_dir):
    with pytest.raises(ConfigError, match=r"needs actor\.device=cpu or cuda"):
        bitwise.check(ModelConfig(path="x", dtype="fp32"), "mps")
    with pytest.raises(ConfigError, match="on a GPU: it needs bf16"):
        bitwise.check(ModelConfig(path="x", dtype="fp32"), "cuda")
    with pytest.raises(ConfigError, match="use_remove_padding=false on a GPU"):
        bitwise.check(ModelConfig(path="x", dtype="bf16"), "cuda", packed=False)
    with pytest.raises(ConfigError, match="is not possible with the strategy's option context_parallel_size"):
        bitwise.check(ModelConfig(path="x", dtype="fp32"), "cpu", sharing="actor.strategy.context_parallel_size")
    with pytest.raises(ConfigError, match="this engine or strategy on a GPU"):
        bitwise.check(ModelConfig(path="x", dtype="bf16"), "cuda", on_cuda=False)
    spec = StrategySpec(ModelConfig(path="nowhere", dtype="bf16"), "cuda", CUT)
    with pytest.raises(ConfigError, match="this engine or strategy on a GPU"):
        SingleDeviceStrategy(spec, TorchOptions(bitwise=True))
    with pytest.raises(ConfigError, match="compile"):
        strategy(model_dir, compile=True)


def test_a_part_without_an_invariant_version_is_refused_by_name():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Parameter(torch.ones(2, 3, 4))

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Experts())
    with pytest.raises(ConfigError, match="Experts"):
        for module in model.modules():
            bitwise._replace(module, on_cpu)
