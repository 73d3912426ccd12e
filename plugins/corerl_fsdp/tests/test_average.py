"""The average of past weights: its value in float64, passes with it, checkpoints, sizes; strategies torch and fsdp."""

import dataclasses

import pytest
import torch

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import AveragingStrategy, MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl_check import ModelSize
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.training_ranks import AllOutputs, rank_batch
from corerl_torch import lora
from families import write_config

DECAY = 0.9


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("average"), "llama", tie_word_embeddings=False)


def make(kind, path, *, rank=0, decay=DECAY, **spec):
    model = ModelConfig(str(path), dtype="fp32", load_format="dummy", lora_rank=rank)
    given = StrategySpec(model, "cpu", MicroBatching(max_sequences=2), optim=OptimConfig(lr=1e-2), **spec)
    if kind == "torch":
        return SingleDeviceStrategy(given, TorchOptions(ema_decay=decay))
    return FsdpStrategy(given, FsdpOptions(ema_decay=decay))


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights(strategy):
    return {name: whole(each) for name, each in lora.trained(strategy.model)}


def averages(strategy):
    return {name: whole(each) for name, each in strategy.average.values.items()}


def log_probs(strategy, batch):
    return strategy.forward(batch, {"log_probs"}).log_probs


every = pytest.mark.parametrize("kind", ["torch", "fsdp"])


@every
@pytest.mark.parametrize("rank", [0, 4])
def test_the_average_is_that_of_the_weights_after_each_update(path, kind, rank):
    strategy, batch = make(kind, path, rank=rank), rank_batch()
    wanted = {name: each.double() for name, each in weights(strategy).items()}
    for _ in range(4):
        strategy.update(batch, AllOutputs())
        wanted = {name: DECAY * wanted[name] + (1 - DECAY) * each.double() for name, each in weights(strategy).items()}
    found = averages(strategy)
    assert found.keys() == wanted.keys()
    assert all(each.dtype == torch.float32 for each in found.values())
    assert max(float((found[name] - each).abs().max()) for name, each in wanted.items()) < 1e-6
    moved = max(float((weights(strategy)[name] - each).abs().max()) for name, each in wanted.items())
    assert moved > 1e-3


@every
def test_a_pass_with_the_average_is_that_of_a_model_with_these_weights(path, kind):
    strategy, batch = make(kind, path), rank_batch()
    for _ in range(2):
        strategy.update(batch, AllOutputs())
    before, present = weights(strategy), log_probs(strategy, batch)
    with strategy.averaged():
        averaged = log_probs(strategy, batch)
    other = make("torch", path)
    with torch.no_grad():
        for name, parameter in other.model.named_parameters():
            parameter.copy_(averages(strategy)[name])
    torch.testing.assert_close(averaged, log_probs(other, batch), rtol=0, atol=2e-6)
    assert float((averaged - present).abs().max()) > 1e-3
    assert torch.equal(log_probs(strategy, batch), present)
    assert all(torch.equal(before[name], each) for name, each in weights(strategy).items())


@every
def test_the_weights_return_if_a_pass_fails(path, kind):
    strategy, batch = make(kind, path), rank_batch()
    strategy.update(batch, AllOutputs())
    before, kept = weights(strategy), averages(strategy)
    with pytest.raises(RuntimeError, match="in the pass"), strategy.averaged():
        raise RuntimeError("in the pass")
    assert all(torch.equal(before[name], each) for name, each in weights(strategy).items())
    assert all(torch.equal(kept[name], each) for name, each in averages(strategy).items())


@every
@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_restores_the_average_bit_for_bit(path, tmp_path, kind, rank):
    strategy, batch = make(kind, path, rank=rank), rank_batch()
    strategy.update(batch, AllOutputs())
    kept = averages(strategy)
    strategy.save(tmp_path)()
    again = make(kind, path, rank=rank)
    again.load(tmp_path)
    assert all(torch.equal(kept[name], each) for name, each in averages(again).items())
    for each in (strategy, again):
        each.update(batch, AllOutputs())
    assert all(torch.equal(averages(strategy)[name], each) for name, each in averages(again).items())
    assert isinstance(again, AveragingStrategy)


@every
def test_a_checkpoint_without_an_average_is_refused_if_one_is_wanted(path, tmp_path, kind):
    make(kind, path, decay=None).save(tmp_path)()
    with pytest.raises(ModelError, match=r"written without actor\.strategy\.ema_decay"):
        make(kind, path).load(tmp_path)


def test_a_run_without_an_average_reads_a_checkpoint_with_one(path, tmp_path):
    make("torch", path).save(tmp_path)()
    make("torch", path, decay=None).load(tmp_path)


def test_only_trained_language_models_keep_an_average(path):
    assert make("torch", path, head="value").average is None
    spec = dataclasses.replace(make("torch", path).spec, optim=None)
    reference = SingleDeviceStrategy(spec, TorchOptions(ema_decay=DECAY))
    assert reference.average is None
    with pytest.raises(ConfigError, match=r"actor\.strategy\.ema_decay"), reference.averaged():
        pass


@pytest.mark.parametrize("ranks", [1, 4])
def test_its_size_is_four_bytes_a_trained_weight(ranks):
    size = ModelSize.__new__(ModelSize)
    fields = {each.name: 1000 for each in dataclasses.fields(ModelSize)}
    for name, value in (fields | {"bytes": 2, "trained": 800}).items():
        object.__setattr__(size, name, value)
    for options in (TorchOptions, FsdpOptions):
        divided = ranks if options is FsdpOptions else 1
        without, with_one = (
            options(ema_decay=decay).share(size, ranks, ModelConfig("x"), updated=True) for decay in (None, DECAY)
        )
        assert with_one.weights - without.weights == pytest.approx(3200 / divided)
        assert with_one.at_rest - without.at_rest == pytest.approx(3200 / divided)
        reference = options(ema_decay=DECAY).share(size, ranks, ModelConfig("x"), updated=False)
        assert reference == options().share(size, ranks, ModelConfig("x"), updated=False)
