"""Expert parallel: ranks that divide the experts of every layer, and exchange tokens by all-to-all.

A token travels once to each rank that holds one of its experts, with the ids and weights of these experts. The rank
adds up the weighted outputs of its experts, and one vector returns. So a token with k experts on r ranks is sent r
times, not k times. Each rank's experts see the tokens of all ranks of the group, so their gradient is the sum over the
group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from corerl.errors import ConfigError
from corerl_torch.experts.items import Items
from corerl_torch.ranks import grid

KEY = "actor.strategy.expert_parallel_size"

Local = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""of the tokens of all ranks: hidden states, ids of experts here, weights, number of pairs with an expert here"""


@dataclass(frozen=True)
class ExpertGroup:
    """``size`` consecutive ranks.

    Attributes:
        mesh: (ranks / size, size): ``expert_replicas`` hold the same experts, ``expert_parallel`` divide them.
    """

    size: int
    mesh: DeviceMesh

    @property
    def rank(self) -> int:
        """This rank's place in its group."""
        return self.mesh["expert_parallel"].get_local_rank()

    @property
    def replicas(self) -> DeviceMesh:
        """The ranks with the same experts, which FSDP shards over."""
        return self.mesh["expert_replicas"]

    def divide(self, module: Any) -> None:
        """Keep this rank's experts of a module of experts, whose weights may have no storage yet."""
        for name, weight in list(module.named_parameters(recurse=False)):
            own = distribute_tensor(weight.data, self.mesh["expert_parallel"], [Shard(0)], src_data_rank=None)
            module.register_parameter(name, torch.nn.Parameter(own, requires_grad=weight.requires_grad))

    def exchange(self, local: Local, hidden: Tensor, indices: Tensor, weights: Tensor, experts: int) -> Tensor:
        """(tokens, K): ``local`` of the experts of all ranks; one wait of the host, for the numbers of tokens.

        Args:
            indices, weights: (tokens, top_k), among ``experts`` experts.
        """
        each = experts // self.size
        owner = torch.div(indices, each, rounding_mode="floor")
        wanted = torch.zeros(len(hidden), self.size, dtype=torch.bool, device=hidden.device).scatter_(1, owner, True)
        pairs = (owner.flatten() == torch.arange(self.size, device=hidden.device)[:, None]).sum(1)
        own = torch.stack([wanted.sum(0), pairs], dim=1)
        given = torch.empty_like(own)
        group = self.mesh["expert_parallel"].get_group()
        dist.all_to_all_single(given, own, group=group)
        numbers = torch.stack([own, given]).tolist()
        sent, received = ([tokens for tokens, _ in side] for side in numbers)
        by_rank = torch.argsort(~wanted.t().flatten(), stable=True)[: sum(sent)]
        items = Items.of(by_rank % max(1, len(hidden)), len(hidden))

        def travel(values: Tensor, *, back: bool = False) -> Tensor:
            counts = (received, sent) if back else (sent, received)
            moved: Tensor = _Travel.apply(values, *counts, group)  # type: ignore[no-untyped-call]
            return moved

        ids = travel(indices[items.rows]) - self.rank * each
        ids = torch.where((ids >= 0) & (ids < each), ids, each)
        chosen = travel(items.spread(weights))
        partial = local(travel(items.spread(hidden)), ids, chosen, sum(number for _, number in numbers[1]))
        return items.collect(travel(partial, back=True))


def expert_group(size: int, device: str, timeout: float) -> ExpertGroup | None:
    """This rank's group; None for size 1. A collective.

    Raises:
        ConfigError: ``size`` does not divide the number of ranks.
    """
    if size == 1:
        return None
    ranks = dist.get_world_size()
    if ranks % size:
        raise ConfigError(KEY, f"{size} does not divide the {ranks} ranks")
    return ExpertGroup(size, grid((size,), device, timeout, ("expert_replicas", "expert_parallel")))


def check_experts(model: Any, modules: dict[str, Any], group: ExpertGroup) -> None:
    """
    Raises:
        ConfigError: the group cannot divide the experts of the model, or its replicas their weights.
    """
    kind, replicas = model.config.get_text_config().model_type, group.replicas.size()
    stacked = [weight for name, weight in model.named_parameters() if ".experts." in name]
    if not modules or len(stacked) != sum(len(list(each.parameters())) for each in modules.values()):
        raise ConfigError(KEY, f"must be 1: the experts of {kind} are not stacked in the way that ranks can divide")
    for name, module in modules.items():
        for weight in module.parameters():
            if len(weight) % group.size:
                raise ConfigError(KEY, f"{group.size} does not divide the {len(weight)} experts of {name}")
            if weight.shape[1] % replicas:
                raise ConfigError(
                    KEY, f"{replicas} ranks with the same experts do not divide the width {weight.shape[1]} of {name}"
                )


class _Travel(torch.autograd.Function):
    """Send the first ``sent[0]`` rows to rank 0 of the group, the next to rank 1; ``received`` rows come from each."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        found = values.new_empty(sum(received), *values.shape[1:])
        dist.all_to_all_single(found, values.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Travel.forward(ctx, gradient, ctx.received, ctx.sent, ctx.group), None, None, None
