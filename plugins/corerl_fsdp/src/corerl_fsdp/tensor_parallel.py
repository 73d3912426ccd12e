"""Tensor parallel: consecutive ranks have the same rows, and divide the matrices of all layers and the vocabulary.

The plan of a family is that of its config in transformers (``base_model_tp_plan``), carried out by the modules of
:mod:`corerl_fsdp.divided`; the embedding and the output layer are divided by tokens of the vocabulary. All ranks of a
group compute the same loss. Between layers hidden states and their gradients are whole, so weights that the plan does
not name have the same gradient on all ranks of the group; a norm of single heads sees this rank's heads alone, and its
gradient is summed over the group.

The model computes with plain tensors, this rank's parts, which FSDP2 gathers and frees as any others: DTensor would
dispatch every operation in Python. At rest each share is a DTensor of the whole matrix, over the shards and over the
ranks that divide it: for checkpoints, exports, weights of engines, the optimizer.
"""

import functools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from corerl.errors import ConfigError
from corerl_fsdp.divided import Ranks, SharedInput, by_columns, by_rows, by_tokens, of_own_heads
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, family_of
from corerl_torch.output_layer import body_of
from corerl_torch.sequence_parallel import divisors
from corerl_torch.vocabulary_parallel import Part

NAME = "tensor_model_parallel_size"
KEY = f"actor.strategy.{NAME}"

COLUMN = next(each for each in COLUMNS if each.key == "fsdp.tensor")

STYLES: Mapping[str, Callable[..., dict[str, int]]] = {
    "colwise": by_columns,
    "rowwise": by_rows,
    "colwise_gather_output": functools.partial(by_columns, gathers=True),
    "rowwise_split_input": functools.partial(by_rows, slices=True),
    "replicated_with_grad_allreduce": of_own_heads,
}
"""by the names of transformers"""


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that divide the matrices with this one.

    Attributes:
        mesh: of all ranks; its last dimension is that of the group, those before are FSDP2's.
        divided: after :func:`divide`, the divided parameters.
    """

    mesh: DeviceMesh
    divided: list["Divided"] = field(default_factory=list)

    @property
    def ranks(self) -> Ranks:
        """Those of the group."""
        own = self.mesh["tensor"]
        return Ranks(own.size(), own.get_local_rank(), own.get_group())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.shape[-1]

    def part(self, vocabulary: int) -> Part:
        """This rank's tokens."""
        own = self.ranks.part(vocabulary)
        return Part(own.start, own.stop - own.start, self.ranks.group)

    def gather(self, logits: Tensor, vocabulary: int) -> Tensor:
        """(N, V) of all ranks' (N, own part); the gradient, which is the same on all ranks, returns to each's own."""
        return self.ranks.gather(logits, vocabulary)


@dataclass(frozen=True)
class Divided:
    """A parameter of which a rank has a part.

    Attributes:
        owner, name: the module that has it.
        dim: in which it is divided.
        shape: of the whole.
        own: this rank's part, as FSDP2 gets it.
    """

    owner: nn.Module
    name: str
    dim: int
    shape: torch.Size
    own: nn.Parameter


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
    if -(-text.vocab_size // size) * (size - 1) >= text.vocab_size:
        raise ConfigError(key, f"{size} leaves ranks without a token of the model's {text.vocab_size}")
    return plan


def divide(model: Any, plan: Mapping[str, str], group: TensorGroup) -> None:
    """Keep this rank's parts of a transformers model without storage, which then runs on the ranks together."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # of gathers in two dimensions
    ranks, embedding, head = group.ranks, model.get_input_embeddings(), model.get_output_embeddings()
    tied, body = head is not None and head.weight is embedding.weight, body_of(model)
    shared: dict[str, SharedInput] = {}
    for name, module in list(body.named_modules()):
        style, parent = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name)), name.rpartition(".")[0]
        if style is not None and module is not embedding:
            if parent not in shared:
                shared[parent] = SharedInput(body.get_submodule(parent), ranks)
            _keep_parts(module, STYLES[style](module, ranks, shared[parent]), group)
    _keep_parts(embedding, by_tokens(embedding, ranks), group)
    if head is not None:
        _keep_parts(head, by_columns(head, ranks, ranks.copy), group)
    if tied:
        head.weight = embedding.weight


def _keep_parts(module: nn.Module, dims: Mapping[str, int], group: TensorGroup) -> None:
    for name, dim in dims.items():
        whole: Tensor = getattr(module, name)
        own, size = group.ranks.part(whole.shape[dim]), list(whole.shape)
        size[dim] = own.stop - own.start
        part = nn.Parameter(whole.new_empty(size), requires_grad=whole.requires_grad)
        setattr(module, name, part)
        group.divided.append(Divided(module, name, dim, whole.shape, part))


def sharded_dimension(group: TensorGroup) -> Callable[[Tensor], Shard | None]:
    """For FSDP2: a matrix that is divided by rows is sharded by columns if they divide; None: by rows."""
    by_rows = {id(each.own) for each in group.divided if each.dim == 0}
    shards = group.mesh.shape[-2]

    def dimension(parameter: Tensor) -> Shard | None:
        if parameter.dim() < 2 or parameter.shape[1] % shards:
            return None
        return Shard(1) if id(parameter) in by_rows else None

    return dimension


@torch.no_grad()
def name_wholes(group: TensorGroup) -> None:
    """Make each share, which FSDP2 takes for one of this rank's part, one of the whole matrix.

    FSDP2 takes over a parameter that replaces its own, as that of ``load_state_dict(assign=True)``, with the next
    ``_apply``.
    """
    wholes: dict[Tensor, nn.Parameter] = {}
    for each in group.divided:
        share: Any = getattr(each.owner, each.name)
        if share not in wholes:
            last: Any = share.placements[-1]
            if last.dim == each.dim:  # the ranks of a shard group divide each part
                last = _StridedShard(each.dim, split_factor=group.size)
            whole = DTensor.from_local(
                share.to_local(),
                group.mesh,
                (*share.placements[:-1], last, Shard(each.dim)),
                run_check=False,
                shape=each.shape,
                stride=torch.empty(each.shape, device="meta").stride(),
            )
            wholes[share] = nn.Parameter(whole, requires_grad=share.requires_grad)
        setattr(each.owner, each.name, wholes[share])
