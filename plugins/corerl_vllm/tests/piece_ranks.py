"""Two ranks of ``fsdp``, each a process, as actor workers of the transport of pieces."""

import os
from types import SimpleNamespace

import torch

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy

HOST = SimpleNamespace(worker=None, transport=None, timeout=120.0, address="127.0.0.1", others=())


def run(job):
    """``job["function"]`` of this rank's host and its own arguments."""
    if HOST.worker is None:
        model = ModelConfig(path=job["model"], dtype="fp32")
        spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=4), optim=OptimConfig(), total_steps=1)
        strategy = FsdpStrategy(spec)
        HOST.worker = SimpleNamespace(
            strategy=strategy, sharded_weights=lambda: strategy.sharded_weights(torch.float32)
        )
    own = job["arguments"].get(int(os.environ["RANK"]))
    return None if own is None else job["function"](HOST, *own)


def scale(host, factor):
    """Change the weights."""
    with torch.no_grad():
        for parameter in host.worker.strategy.model.parameters():
            parameter.to_local().mul_(factor)


def whole(host):
    """All weights, as arrays; a collective."""
    return {name: tensor.numpy().copy() for name, tensor in host.worker.strategy.weights(torch.float32)}
