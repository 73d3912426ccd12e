"""What a rank of strategy fsdp does in a test: one update on its rows, whose gradient it returns."""

from functools import partial

import torch

from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective
from corerl_distill.loss import distill
from corerl_distill.of_logits import make
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions


def update(job):
    """Loss, and name -> gradient."""
    config, options, batch = job["config"], job["options"], job["batch"]
    limit = MicroBatching(max_sequences=2)
    spec = StrategySpec(config.model, "cpu", limit, optim=config.actor.optim, grad_clip=1e9)
    strategy = FsdpStrategy(spec, FsdpOptions(ema_decay=0.5, ulysses_sequence_parallel_size=job["sharing"]))
    seen, take_step = {}, strategy._step

    def step(*arguments):
        for name, parameter in strategy.model.named_parameters():
            seen[name] = parameter.grad.full_tensor().clone()
        return take_step(*arguments)

    strategy._step = step
    rows = torch.arange(strategy.data_parallel_rank, len(batch), strategy.data_parallel_size)
    objective = PolicyObjective(partial(distill, options=options), of_logits=make(config, options))
    loss = strategy.update(batch.select(rows), objective)["pg_loss"].value
    return float(loss), {name: each.numpy() for name, each in seen.items()}
