"""One data-parallel rank: ``python gloo_rank.py RANK SIZE FOLDER LOSS…`` saves the summed gradient of each loss."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from corerl.config import typed
from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner, Selected
from corerl.registry.policy_losses import LossOutput, PolicyLossInputs
from corerl.testing.invariance import setting


def micro_batch_mean(inputs: PolicyLossInputs) -> LossOutput:
    """A wrong loss: it averages over the rows that it is given."""
    ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20).exp()
    return LossOutput(-inputs.advantages * ratio / inputs.response_mask.sum().clamp(min=1))


def selected(name: str) -> Selected[Any]:
    if name == "micro_batch_mean":
        return Selected(Entry("policy loss", name, micro_batch_mean, Owner("acme")))
    entry = load_plugins().registries.policy_losses.get(name)
    return Selected(entry, None if entry.options is None else typed.build(entry.options, {}))


def main(rank: int, size: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    for name in names:
        case = setting(selected(name), full=True)
        share = torch.arange(rank, len(case.batch), size)
        gradient = case.gradient([share[start : start + 2] for start in range(0, len(share), 2)])
        dist.all_reduce(gradient)
        if rank == 0:
            torch.save(gradient, folder / f"{name}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
