"""One data-parallel rank of a :class:`corerl_testing.ranks.World`: the summed gradient of each loss."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.config import typed
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.plugins import load_plugins
from corerl.registry import Owner, Registries, Selected
from corerl_testing.invariance import setting
from corerl_testing.ranks import Job


def micro_batch_mean(inputs: PolicyLossInputs) -> LossOutput:
    """A wrong loss: it averages over the rows that it is given."""
    ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20).exp()
    return LossOutput(-inputs.advantages * ratio / inputs.response_mask.sum().clamp(min=1))


def selected(name: str) -> Selected[Any]:
    if name == "micro_batch_mean":
        return Selected(Registries().policy_losses.entry(name, micro_batch_mean, Owner("acme")))
    entry = load_plugins().registries.policy_losses.get(name)
    return Selected(entry, None if entry.options is None else typed.build(entry.load_options(), {}))


def run(job: Job) -> dict[str, Tensor]:
    """Name -> gradient, of the losses ``job["names"]``."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    gradients = {}
    for name in job["names"]:
        case = setting(selected(name), full=True)
        share = torch.arange(rank, len(case.batch), size)
        gradients[name] = case.gradient([share[start : start + 2] for start in range(0, len(share), 2)])
        dist.all_reduce(gradients[name])
    dist.destroy_process_group()
    return gradients
