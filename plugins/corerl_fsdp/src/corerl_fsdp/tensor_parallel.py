"""Tensor parallel: consecutive ranks have the same rows, and divide the matrices of all layers and the vocabulary.

The plan of a family is that of its config in transformers (``base_model_tp_plan``), carried out by torch's
``parallelize_module``; the embedding and the output layer are divided by tokens of the vocabulary. All ranks of a group
compute the same loss. Between layers hidden states and their gradients are whole, so weights that the plan does not
name have the same gradient on all ranks of the group; a norm of single heads sees this rank's heads alone, and its
gradient is summed over the group.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from corerl.errors import ConfigError
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, family_of
from corerl_torch.output_layer import body_of
from corerl_torch.sequence_parallel import SequenceGroup, divisors
from corerl_torch.vocabulary_parallel import Part

NAME = "tensor_model_parallel_size"
KEY = f"actor.strategy.{NAME}"

COLUMN = next(each for each in COLUMNS if each.key == "fsdp.tensor")

STYLES: Mapping[str, ParallelStyle] = {
    "colwise": ColwiseParallel(),
    "rowwise": RowwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": SequenceParallel(sequence_dim=1, use_local_output=True),
}
"""by the names of transformers"""


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that divide the matrices with this one.

    Attributes:
        mesh: of these ranks, in one dimension.
    """

    mesh: DeviceMesh

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size()

    def part(self, vocabulary: int) -> Part:
        """This rank's tokens."""
        counts, rank = self._counts(vocabulary), self.mesh.get_local_rank()
        return Part(sum(counts[:rank]), counts[rank], self.mesh.get_group())

    def gather(self, logits: Tensor, vocabulary: int) -> Tensor:
        """(N, V) of all ranks' (N, own part); the gradient, which is the same on all ranks, returns to each's own."""
        group = SequenceGroup(self.size, self.mesh.get_local_rank(), self.mesh.get_group())
        return group.gather(logits.t().contiguous(), self._counts(vocabulary)).t()

    def _counts(self, vocabulary: int) -> list[int]:
        """Tokens of each rank, as DTensor divides them."""
        each = -(-vocabulary // self.size)
        return [max(0, min(each, vocabulary - rank * each)) for rank in range(self.size)]


def plan_of(config: Any, size: int, key: str = KEY) -> Mapping[str, str]:
    """Name of a module in the body, with ``*`` for the numbers of layers → its style in :data:`STYLES`.

    Args:
        config: of a transformers model.

    Raises:
        ConfigError: no test proves the family's plan, or ``size`` does not divide the model.
    """
    text = config.get_text_config()
    kind = text.model_type if text is config else config.model_type
    family = family_of(kind)
    if family is None or family.state(COLUMN) != "proven":
        proven = ", ".join(each.model_type for each in FAMILIES if each.state(COLUMN) == "proven")
        raise ConfigError(key, f"must be 1: no test proves a plan for '{kind}'; those of {proven} are proven")
    plan: Mapping[str, str] = text.base_model_tp_plan
    if plan.get("layers.*.self_attn.k_proj") == "colwise":
        heads = {
            "attention heads": text.num_attention_heads,
            "key and value heads": text.num_key_value_heads,
            "key and value heads of full attention": getattr(text, "num_global_key_value_heads", None) or size,
        }
        for what, number in heads.items():
            if number % size:
                raise ConfigError(key, f"{size} does not divide the model's {number} {what}; {divisors(number)} would")
    if text.intermediate_size % size:
        raise ConfigError(key, f"{size} does not divide the model's intermediate size {text.intermediate_size}")
    return plan


def divide(model: Any, plan: Mapping[str, str], group: TensorGroup) -> None:
    """Keep this rank's parts of a transformers model without storage, which then runs on the ranks together."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # of gathers in two dimensions
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    for name, module in body_of(model).named_modules():
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is not None and module is not embedding:
            _divide(module, group, STYLES[style])
    _divide(embedding, group, RowwiseParallel(input_layouts=Replicate()))
    if head is not None:
        _divide(head, group, ColwiseParallel())
    if tied:
        head.weight = embedding.weight


def _divide(module: nn.Module, group: TensorGroup, style: ParallelStyle) -> None:
    parallelize_module(module, group.mesh, style, src_data_rank=None)


def sharded_dimension(shards: int) -> Callable[[Tensor], Shard | None]:
    """For FSDP2: a matrix that is divided by rows is sharded by columns if they divide; None: by rows."""

    def dimension(parameter: Tensor) -> Shard | None:
        if not isinstance(parameter, DTensor) or parameter.dim() < 2 or parameter.shape[1] % shards:
            return None
        return Shard(1) if parameter.placements[0].is_shard(0) else None

    return dimension
