"""Weights that one rank holds whole are gathered once in an update, not once in each micro-batch."""

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.training_ranks import AllOutputs, rank_batch
from families import write_config


def updated(path, *, frees):
    """Weights after three updates of several micro-batches, and how often a weight was gathered in the last one."""
    model = ModelConfig(str(path), dtype="bf16", load_format="dummy", enable_gradient_checkpointing=True)
    spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=2), optim=OptimConfig(lr=1e-2))
    strategy, batch, gathered = FsdpStrategy(spec, FsdpOptions()), rank_batch(), []
    assert not strategy._frees_weights
    strategy._frees_weights = frees
    assert len(strategy._cuts(batch)) > 2
    with pytest.MonkeyPatch.context() as patch:
        unsharded = FSDPParam.to_unsharded
        patch.setattr(FSDPParam, "to_unsharded", lambda each: (gathered.append(id(each)), unsharded(each))[1])
        for _ in range(3):
            gathered.clear()
            strategy.update(batch, AllOutputs())
    found = {name: each.full_tensor().detach().clone() for name, each in strategy.model.named_parameters()}
    return found, max(map(gathered.count, gathered)), len(strategy._cuts(batch))


def test_kept_weights_are_gathered_once_an_update_and_change_no_bit(tmp_path):
    write_config(tmp_path, "qwen2")
    kept, times, _ = updated(tmp_path, frees=False)
    freed, often, cuts = updated(tmp_path, frees=True)
    assert (times, often) == (1, cuts)
    assert kept.keys() == freed.keys()
    for name, tensor in freed.items():
        assert torch.equal(kept[name], tensor), name
