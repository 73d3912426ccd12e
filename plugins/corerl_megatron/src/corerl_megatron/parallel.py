"""megatron-core's process groups, set up once in a process."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import random

from corerl.errors import ConfigError
from corerl_megatron.arithmetic import check_ranks
from corerl_megatron.options import MegatronOptions
from corerl_torch import ranks
from corerl_torch.loading import own_random_state
from corerl_torch.sequence_parallel import SequenceGroup


@dataclass(frozen=True)
class Group:
    """A group of ranks that share something; this rank is the ``rank``-th of ``size``."""

    rank: int
    size: int
    group: Any

    def global_rank(self, rank: int) -> int:
        """The global rank of this group's ``rank``-th rank."""
        return dist.get_global_rank(self.group, rank)


@dataclass(frozen=True)
class Layout:
    """This rank's groups.

    Attributes:
        gradients: ranks with the same weights and other tokens: data and context parallel.
    """

    tensor: Group
    pipeline: Group
    context: Group
    data: Group
    expert: Group
    gradients: Group

    @property
    def tokens(self) -> SequenceGroup | None:
        """The context-parallel ranks, which exchange tokens for heads in attention (all-to-all); None for one rank."""
        context = self.context
        return SequenceGroup(context.size, context.rank, context.group) if context.size > 1 else None

    @property
    def speaks(self) -> bool:
        """Whether this rank's loss and metrics count, among all ranks of its data-parallel rank."""
        return self.tensor.rank == 0 and self.context.rank == 0 and self.pipeline.rank == self.pipeline.size - 1


def lay_out(device: str, options: MegatronOptions, key: str) -> Layout:
    """Connect to the other ranks and set up the groups; a collective.

    Args:
        key: the config key of the strategy, for errors.

    Raises:
        ConfigError: the ranks do not divide, or this process already has another layout.
    """
    ranks.join(device, options.timeout)
    check_ranks(key, options, dist.get_world_size())
    sizes = {
        "tensor_model_parallel_size": options.tensor_model_parallel_size,
        "pipeline_model_parallel_size": options.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": options.virtual_pipeline_model_parallel_size,
        "context_parallel_size": options.context_parallel_size,
        "expert_model_parallel_size": options.expert_model_parallel_size,
    }
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            **sizes,
            expert_tensor_parallel_size=1,
            distributed_timeout_minutes=timedelta(seconds=max(60.0, options.timeout)).total_seconds() / 60,
        )
        _LAID_OUT.update(sizes)
        if device == "cuda":
            with own_random_state(device, 0):
                random.model_parallel_cuda_manual_seed(0)  # nothing is random, but the states must exist
    if sizes != _LAID_OUT:
        raise ConfigError(key, f"this process has ranks laid out as {_LAID_OUT}: all models of a run share one layout")
    return _layout()


def forget() -> None:
    """Let the next model set up new groups; the present groups must not be used any more."""
    parallel_state.destroy_model_parallel()
    _LAID_OUT.clear()


_LAID_OUT: dict[str, int | None] = {}


def _layout() -> Layout:
    state: Any = parallel_state

    def group(of: Any) -> Group:
        return Group(dist.get_rank(of), dist.get_world_size(of), of)

    return Layout(
        tensor=group(state.get_tensor_model_parallel_group()),
        pipeline=group(state.get_pipeline_model_parallel_group()),
        context=group(state.get_context_parallel_group()),
        data=group(state.get_data_parallel_group(with_context_parallel=False)),
        expert=group(state.get_expert_model_parallel_group()),
        gradients=group(state.get_data_parallel_group(with_context_parallel=True)),
    )


def free_memory() -> None:
    """Return unused CUDA memory to the device."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
